"""Adaptive rules on and off, and whether the difference has the sign that the paper claims.

    python benchmarks/directions.py SUITE [--prompts 8] [--tokens 32] --json FILE

Every rule of `ablations.py` runs beside the same recipe without it, on the same prompts. Counted
are tokens, passes, nodes and levels of drafting, which no machine changes. Speed is modelled from
them: a pass costs what the records say for an H200 and for two CPU cores by its rows, a level of
drafting what EAGLE-3's levels take there. Controllers see these modelled seconds of the H200, not a
clock, except those whose claim is about the CPU.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations import ABLATIONS, ELSEWHERE, ON_CPU, ON_GPU, PER_NODE, PER_PASS, Ablation
from paired_record import Estimate, PairedRecord, difference, ratio, until

from sapwood.bench import provenance
from sapwood.bench.suites import digest, gather
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import StageClock
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import RECIPES, named, resolve

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


class ModelledClock(StageClock):
    """A clock that shows the modelled seconds of a round instead of real ones."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(float)  # a clock that stays at zero
        self.machine = machine
        self.levels = 0  # of the draft under way; counted once
        self.rows = 0  # of the pass under way
        self.context = 0

    def lap(self, stage: str) -> None:
        """Count the modelled seconds of this stage."""
        if stage == "draft":
            self.stages[stage] += self.levels * self.machine.level
            self.levels = 0
        elif stage == "verify":
            self.stages[stage] += self.machine.curve.seconds(self.rows, self.context)


def decoded(
    engine: Engine,
    machines: dict[str, Machine],
    measure: str,
    prompt: list[int],
    sampling: Sampling,
) -> list[float]:
    """The columns of one recipe on one prompt."""
    value = [0.0] * 7
    with closing(RequestDecoder(engine, prompt, sampling, KeyedRng(sampling.seed))) as decoder:
        clock = ModelledClock(machines[measure])
        decoder.clock = clock
        while value[TOKENS] < sampling.max_tokens and not decoder.full:
            decoder.grow()
            clock.levels = height = decoder.grown.height
            work = decoder.prune()
            clock.rows, clock.context = len(decoder.tree), decoder.session.length
            [scores] = engine.target.score([work])
            outcome = decoder.finish_round(scores)
            value[TOKENS] += len(outcome.tokens)
            value[PASSES] += 1
            value[NODES] += len(outcome.tree) - 1
            value[DRAFTED] += height
            value[ACCEPTED] += outcome.verdict.accepted
            for column, name in ((GPU_SECONDS, ON_GPU), (CPU_SECONDS, ON_CPU)):
                value[column] += machines[name].seconds(clock.rows, clock.context, height)
    return value


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
    return {"rows": rows, "elsewhere": ELSEWHERE}


def run(options: argparse.Namespace) -> None:
    """Measure what is left, and write the record."""
    busy = provenance.load()
    machines = {ON_GPU: h200(), ON_CPU: two_cores()}
    seen = {"gpu": ON_GPU, "cpu": ON_CPU}
    llm = LLM(options.model, "plain", threads=options.threads)
    prompts = {
        prompt.name: tokens
        for prompt in gather(str(options.suite), turns=1)
        if len(tokens := prompt.tokens(llm.target.info, llm.text)) <= LONGEST
    }
    asked = dict(list(prompts.items())[: options.prompts])
    settings = {
        "suite": options.suite.name,
        "digest": digest(gather(str(options.suite), turns=1)),
        "tokens": options.tokens,
        "longest_prompt": LONGEST,
        "levels": {name: machine.level for name, machine in machines.items()},
    }
    record = PairedRecord(options.json, settings)
    origin = provenance.origin(llm.target.info, busy)
    late = until(options.seconds)
    wanted = {thing(one, spelling): None for one in ABLATIONS for spelling in (one.on, one.off)}
    engines: dict[str, Engine] = {}
    for prompt, name in record.left(wanted, asked):
        if late():
            break
        machine, temperature, spelling = name.split(maxsplit=2)
        if name not in engines:
            engine = llm.bind(resolve(spelling))
            engines[name] = Engine(
                engine.target,
                resolve(spelling),
                machines[seen[machine]].curve,
                engine.load,
                encode=engine.encode,
                words=engine.words,
            )
        sampling = Sampling(
            temperature=float(temperature), max_tokens=options.tokens, seed=options.seed
        )
        value = decoded(engines[name], machines, seen[machine], asked[prompt], sampling)
        record.add(name, prompt, value)
        record.write(origin, **summary(record))
        print(f"{prompt} {name}", file=sys.stderr, flush=True)
    record.write(origin, **summary(record))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="JSONL file of prompts")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=8)
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
