"""Adaptive rules on and off, and whether the difference has the sign that the paper claims.

    python benchmarks/directions.py SUITE [--prompts 8] [--tokens 32] --json FILE

Every rule of `ablations.py` runs beside the same recipe without it, on the same prompts. At
temperature 0 a lossless recipe is replayed on the target's recorded text, which its own rounds
would give; the others run. Counted are tokens, passes, nodes and levels of drafting, which no
machine changes. Speed is modelled from them: a pass costs what the records say for an H200 and for
two CPU cores by its rows, a level of drafting what EAGLE-3's levels take there. Controllers see
these modelled seconds of the H200 instead of a clock, or of the CPU where the claim is about it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablations import ABLATIONS, ELSEWHERE, ON_CPU, ON_GPU, PER_NODE, PER_PASS, Ablation
from paired_record import Estimate, PairedRecord, difference, ratio, until

from sapwood.bench import provenance
from sapwood.bench.suites import digest, gather
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, StageClock
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import collect
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import RECIPES, named, resolve
from sapwood.trace.read import read as read_trace
from sapwood.trace.record import opened, traced
from sapwood.trace.replay import PredictedClock, TracePlayer
from sapwood.trace.rounds import Trace

RESULTS = Path(__file__).parent / "results"
LONGEST = 400  # tokens of a prompt
LEVELS = 8  # of EAGLE-3's tree in the records
# columns of a value
TOKENS, PASSES, NODES, DRAFTED, ACCEPTED, GPU_SECONDS, CPU_SECONDS = range(7)
COLUMNS = {
    PER_PASS: (TOKENS, PASSES),
    PER_NODE: (ACCEPTED, NODES),
    ON_GPU: (TOKENS, GPU_SECONDS),
    ON_CPU: (TOKENS, CPU_SECONDS),
}
SEEN = {"gpu": ON_GPU, "cpu": ON_CPU}  # the machine whose seconds a recipe sees
SIGNS = {True: "agrees", False: "opposite", None: "within noise"}


@dataclass(frozen=True)
class Machine:
    """Seconds of a pass by rows, and of a level of drafting, from the records."""

    curve: CostModel
    level: float

    def seconds(self, rows: int, context: int, levels: int) -> float:
        """Seconds of a round."""
        return self.curve.seconds(rows, context) + levels * self.level


def h200() -> Machine:
    """The GPU of gpu-h200.json; a level is an eighth of what its eagle3 rounds take besides."""
    record = read("gpu-h200.json")
    rows = [row["nodes"] for row in record["pass"]["rows"]]
    seconds = [row["replay_us"] / 1e6 for row in record["pass"]["rows"]]
    curve = CostModel(rows, [0], [seconds])
    whole = record["idle"]["eagle3"]["device_us"] / 1e6
    return Machine(curve, (whole - curve.seconds(60, 0)) / LEVELS)


def two_cores() -> Machine:
    """The CPU of cpu-heads-60-nodes.json, with the drafting of its eagle3 rounds."""
    record = read("cpu-heads-60-nodes.json")
    row = next(
        row for row in record["rows"] if (row["recipe"], row["category"]) == ("eagle3", "all")
    )
    drafting = row["draft_share"] * row["seconds"] / row["passes"]
    return Machine(CostModel.from_json(record["cost"]), drafting / LEVELS)


def read(name: str) -> dict[str, Any]:
    """A record."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


class ModelledClock(PredictedClock):
    """A clock that shows the modelled seconds of a round instead of real ones."""

    def __init__(self, decoder: RequestDecoder, machine: Machine) -> None:
        super().__init__(StageClock(float), 1.0)
        self.decoder = decoder
        self.machine = machine
        self.counted: Tree | None = None  # the draft whose levels were counted last

    def lap(self, stage: str) -> None:
        """Count the modelled seconds of this stage."""
        if stage == "verify":
            self.stages[stage] += self.coming
        elif stage == "draft" and self.decoder.grown is not self.counted:
            self.counted = self.decoder.grown
            self.stages[stage] += self.counted.height * self.machine.level


class ModelledPlayer(TracePlayer):
    """Replays recipes at the modelled seconds of a machine."""

    def __init__(self, trace: Trace, llm: LLM, machine: Machine) -> None:
        super().__init__(trace, llm, machine.curve)
        self.machine = machine

    def _predicted(self, decoding: RequestDecoder, prompt: int) -> StageClock:
        return ModelledClock(decoding, self.machine)


def columns_of(
    outcomes: Sequence[Outcome], tokens: int, machines: dict[str, Machine]
) -> list[float]:
    """The columns of one recipe on one prompt, of which so many tokens were kept."""
    value = [0.0] * 7
    value[TOKENS] = tokens
    for outcome in outcomes:
        height = outcome.grown.height
        value[PASSES] += 1
        value[NODES] += len(outcome.tree) - 1
        value[DRAFTED] += height
        value[ACCEPTED] += outcome.verdict.accepted
        for column, name in ((GPU_SECONDS, ON_GPU), (CPU_SECONDS, ON_CPU)):
            value[column] += machines[name].seconds(len(outcome.tree), outcome.context, height)
    return value


def decoded(
    engine: Engine, machine: Machine, prompt: list[int], sampling: Sampling
) -> list[Outcome]:
    """The rounds of a recipe on the model itself."""
    found: list[Outcome] = []
    with closing(RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))) as decoder:
        clock = ModelledClock(decoder, machine)
        decoder.clock = clock
        while sum(len(one.tokens) for one in found) < sampling.max_tokens and not decoder.full:
            work = decoder.draft()
            clock.coming = machine.curve.seconds(len(decoder.tree), decoder.session.length)
            [scores] = engine.target.score([work])
            found.append(decoder.finish_round(scores))
    return found


class Bench:
    """The model, its recorded texts, and both machines."""

    def __init__(
        self, llm: LLM, prompts: dict[str, list[int]], live: int, tokens: int, seed: int
    ) -> None:
        self.llm = llm
        self.prompts = prompts
        self.live = live  # prompts of recipes that cannot be replayed
        self.tokens = tokens
        self.seed = seed
        self.machines = {ON_GPU: h200(), ON_CPU: two_cores()}
        trace = self.recorded()
        self.players = {
            name: ModelledPlayer(trace, llm, machine) for name, machine in self.machines.items()
        }

    def recorded(self) -> Trace:
        """Plain greedy texts of all prompts."""
        info = self.llm.target.info
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            with opened(path, self.llm, "plain", info.model, {"max_tokens": self.tokens}) as writer:
                for name, prompt in self.prompts.items():
                    collect(traced(self.llm, prompt, writer, name, max_tokens=self.tokens))
            return read_trace(path)

    def replays(self, name: str) -> bool:
        """True when the recorded texts are enough for this value."""
        machine, temperature, spelling = name.split(maxsplit=2)
        try:
            self.players[SEEN[machine]].check(resolve(spelling), spelling)
        except SapwoodError:
            return False
        return temperature == "0"

    def values(self, name: str) -> Iterator[tuple[str, list[float]]]:
        """Prompt and columns of a value, for all prompts."""
        machine, temperature, spelling = name.split(maxsplit=2)
        seen = SEEN[machine]
        if self.replays(name):
            run = self.players[seen].play(spelling)
            for prompt, outcomes, kept in zip(self.prompts, run.outcomes, run.kept, strict=True):
                yield prompt, columns_of(outcomes, kept, self.machines)
            return
        base = self.llm.bind(resolve(spelling))
        curve = CostModel.from_json(self.machines[seen].curve.to_json())
        engine = replace(base, recipe=resolve(spelling), cost=curve)
        sampling = Sampling(temperature=float(temperature), max_tokens=self.tokens, seed=self.seed)
        for prompt, tokens in list(self.prompts.items())[: self.live]:
            outcomes = decoded(engine, self.machines[seen], tokens, sampling)
            length = sum(len(one.tokens) for one in outcomes)
            yield prompt, columns_of(outcomes, length, self.machines)


def thing(one: Ablation, spelling: str) -> str:
    """The name of a value in the record: recipe, temperature and the machine that it sees."""
    seen = "cpu" if one.measure == ON_CPU else "gpu"
    return f"{seen} {one.temperature:g} {named(spelling)}"


def column(values: Sequence[Sequence[float]], measure: str) -> list[list[float]]:
    """Numerator and denominator of a measure."""
    top, bottom = COLUMNS[measure]
    return [[value[top], value[bottom]] for value in values]


def mean(values: Sequence[Sequence[float]], measure: str) -> float | None:
    """A measure over all prompts; None without a denominator."""
    rows = column(values, measure)
    return ratio(rows).mean if sum(row[1] for row in rows) else None


def sign(found: Estimate) -> str:
    """Agreement of a gain with a claim that it is positive."""
    return SIGNS[True if found.low > 0 else False if found.high < 0 else None]


def summary(record: PairedRecord) -> dict[str, Any]:
    """A row for each ablation."""
    rows = []
    for one in ABLATIONS:
        pair = [record.values.get(thing(one, spelling), {}) for spelling in (one.on, one.off)]
        both = [prompt for prompt in pair[0] if prompt in pair[1]]
        if not both:
            continue
        on, off = ([values[prompt] for prompt in both] for values in pair)
        gain = difference(column(on, one.measure), column(off, one.measure))
        rows.append(
            {
                **one._asdict(),
                "paper": RECIPES[one.recipe].paper,
                "on_spelling": named(one.on),
                "off_spelling": named(one.off),
                "prompts": len(both),
                "gain": gain.mean,
                "low": gain.low,
                "high": gain.high,
                "sign": sign(gain),
                "means": {
                    name: [mean(on, name), mean(off, name)]
                    for name in (PER_PASS, PER_NODE, ON_GPU, ON_CPU)
                },
                "nodes_per_pass": [
                    round(sum(row[NODES] for row in rows) / sum(row[PASSES] for row in rows), 2)
                    for rows in (on, off)
                ],
            }
        )
    measured = [row["recipe"] for row in rows]
    missing = [one.recipe for one in ABLATIONS if one.recipe not in measured]
    return {"rows": rows, "elsewhere": ELSEWHERE, "missing": missing}


def run(options: argparse.Namespace) -> None:
    """Measure what is left, and write the record."""
    busy = provenance.load()
    llm = LLM(options.model, "plain", threads=options.threads)
    every = gather(str(options.suite), turns=1)
    prompts = {
        prompt.name: tokens
        for prompt in every
        if len(tokens := prompt.tokens(llm.target.info, llm.text)) <= LONGEST
    }
    asked = dict(list(prompts.items())[: options.prompts])
    bench = Bench(llm, asked, options.live, options.tokens, options.seed)
    settings = {
        "suite": options.suite.name,
        "digest": digest(every),
        "prompts": options.prompts,
        "tokens": options.tokens,
        "longest_prompt": LONGEST,
        "levels": {name: machine.level for name, machine in bench.machines.items()},
    }
    record = PairedRecord(options.json, settings)
    origin = provenance.origin(llm.target.info, busy)
    late = until(options.seconds)
    wanted = [thing(one, spelling) for one in ABLATIONS for spelling in (one.on, one.off)]
    left = [name for name in dict.fromkeys(wanted) if name not in record.values]
    for name in sorted(left, key=lambda name: not bench.replays(name)):  # replays first
        if late():
            break
        try:
            for prompt, value in bench.values(name):
                record.add(name, prompt, value)
        except SapwoodError as error:
            print(f"left out: {name}: {error}", file=sys.stderr, flush=True)
            record.values.pop(name, None)
            continue
        record.write(origin, **summary(record))
        print(name, file=sys.stderr, flush=True)
    record.write(origin, **summary(record))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="JSONL file of prompts")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--live", type=int, default=8, help="prompts where texts must be decoded")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this time; run again to go on")
    parser.add_argument("--json", type=Path, required=True)
    try:
        run(parser.parse_args(arguments))
    except SapwoodError as error:
        print(f"directions: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
