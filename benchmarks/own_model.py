"""`auto` without a trained head against plain decoding, on any model, step by step in turns.

    python benchmarks/own_model.py SUITE.jsonl --model smollm2 --json FILE [--seconds 300]
    python benchmarks/own_model.py SUITE.jsonl --model FILE.gguf --name gemma-3-270m --json FILE

One request at a time in groups of prompts, and several at once, of a model that has a head also
with it. All recipes share the loaded model, and their steps take turns, so that a machine that
becomes slower or faster treats them alike (`interleaved.py`); texts must be equal. `auto` begins
with nothing learned and keeps what it learns; each prompt is new to it. Steps with prefill are not
timed; greedy throughout. A group's figure is the median of its prompts' ratios, with a 95 %
bootstrap interval over prompts. Several at once means always: when a request ends, the next prompt
takes its place. The values there are of stretches of so many tokens, and beside `auto` stand
recipes with fixed trees. The predicted speedup is the one that `sapwood run` prints, where it
prints one.

Several models go into one record, one command after the other. `--seconds` ends a run early; the
same command then goes on, with an `auto` that begins anew. `--groups` and `--at-once` choose what
is measured.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from interleaved import OneRequest, SteadyLoad, StepTotals, decode_in_turns, load_in_turns
from paired_record import PairedRecord, draws, estimate, until

from sapwood.bench import provenance
from sapwood.bench.suites import BenchPrompt, digest, gather
from sapwood.common.drafter_store import HIDE, has
from sapwood.engine.plain_speed import measured_speedup
from sapwood.errors import SapwoodError
from sapwood.llm import LLM

FROM_FILE = {"chat": "mt_bench", "qa": "qa", "translation": "translation"}
FROM_FILE |= {"math": "math_reasoning", "rag": "rag"}
BUILT_IN = ("random", "copy", "edit")
GROUPS = (*FROM_FILE, *BUILT_IN)
AT_ONCE = " at once, "
STRETCHES = 8  # of each level
STRETCH_TOKENS = 1536
LOAD_TOKENS = 96  # of each request there, or more where so many requests would always prefill one
STEPS_EACH = 6  # steps of all between two ends of requests, at least
# recipes with fixed trees, without a head and with one
FIXED = {False: ("recycling-small",), True: ("eagle3-small",)}
RECIPES = {
    "recycling-small": "recycling + best(estimator=raw) + match + fixed(nodes=3, depth=3, width=2)",
    "eagle3-small": "eagle3 + best(estimator=raw) + match + fixed(nodes=3, depth=3, width=2)",
}
SHORTEST = 8  # tokens of an answer that is timed
LONGEST = 700  # tokens of a prompt, so that prefill does not take most of the time
WARM_UP = "Name three rivers and say where they rise."
PARTS = ("draft", "verify", "other")  # of the seconds of a run
UNKNOWN = -1.0  # in place of a prediction that is not printed


class Timed(NamedTuple):
    """Seconds per token of plain decoding and of a recipe, and where those of the recipe went."""

    plain: float
    recipe: float
    repeat: float  # plain decoding's every other step over the steps between
    predicted: float = UNKNOWN  # speedup
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0
    tokens_per_pass: float = 0.0  # of one request
    nodes_per_pass: float = 0.0

    @property
    def ratio(self) -> float:
        """Tokens per second of the recipe over those of plain decoding."""
        return self.plain / self.recipe


# ------------------------------------------------------------------------------------- measuring
def timed(plain: StepTotals, made: StepTotals, predicted: float | None = None) -> Timed:
    """The row of two runs that took turns."""
    first, second = plain.halves
    return Timed(
        plain.pace,
        made.pace,
        first / second if second else 1.0,
        UNKNOWN if predicted is None else predicted,
        draft=made.draft / made.tokens,
        verify=made.verify / made.tokens,
        other=(made.seconds - made.draft - made.verify) / made.tokens,
        tokens_per_pass=made.tokens / made.passes,
        nodes_per_pass=made.nodes / made.passes,
    )


def one(plain: LLM, auto: LLM, prompt: list[int], tokens: int) -> Timed | None:
    """Decode a prompt alone; None if the answer is too short."""
    runs: list[OneRequest] = decode_in_turns([plain, auto], prompt, tokens)
    if runs[0].emitted <= SHORTEST:
        return None
    told = measured_speedup(plain.engine, prompt, runs[1].completion())
    return timed(runs[0].totals, runs[1].totals, told)


def prompts_of(suite: str, group: str, limit: int) -> list[BenchPrompt]:
    """The prompts of a group."""
    if group in BUILT_IN:
        return gather(group, limit=limit)
    return gather(suite, [FROM_FILE[group]], limit=limit, turns=1)


def fitting(llm: LLM, prompts: Sequence[BenchPrompt]) -> dict[str, list[int]]:
    """Tokens of the prompts, by name; long ones lose their middle."""
    found = {prompt.name: prompt.tokens(llm.target.info, llm.text) for prompt in prompts}
    half = LONGEST // 2
    return {
        name: tokens if len(tokens) <= LONGEST else [*tokens[:half], *tokens[-half:]]
        for name, tokens in found.items()
    }


def engines(llm: LLM, recipes: Sequence[str], heads: bool) -> list[LLM]:
    """Recipes of a loaded model, warmed up."""
    os.environ[HIDE] = "0" if heads else "1"
    made = [llm.with_recipe(recipe) for recipe in recipes]
    for each in made:
        each.generate(WARM_UP, max_tokens=24, progress=False)
    return made


class Measurement:
    """What is measured of one model, in the order of the record."""

    def __init__(
        self, llm: LLM, args: argparse.Namespace, record: PairedRecord, over: Callable[[], bool]
    ) -> None:
        self.llm = llm
        self.args = args
        self.record = record
        self.over = over
        groups = {
            group: fitting(llm, prompts_of(args.suite, group, args.prompts)) for group in GROUPS
        }
        self.order = [
            (group, name, tokens)
            for place in range(args.prompts)
            for group, found in groups.items()
            for name, tokens in list(found.items())[place : place + 1]
        ]

    def run(self) -> Iterator[None]:
        """Measure what is missing; yields after every value."""
        yield from self._alone()
        info = self.llm.target.info
        os.environ[HIDE] = "0"  # else none would be found
        kinds = [False, True] if has("eagle3", info.model, info.weights) else [False]
        for heads in kinds:
            for level in self.args.at_once:
                yield from self._together(level, heads)

    def _missing(self, thing: str, name: str) -> bool:
        return name not in self.record.values.get(thing, {})

    def _add(self, thing: str, name: str, row: Timed) -> None:
        sys.stderr.write(f"{thing:<44}{name:<26}{row.ratio:.3f}\n")
        self.record.add(thing, name, row)

    def _alone(self) -> Iterator[None]:
        """Prompts of the groups, one at a time."""
        left = [
            (f"{self.args.name}: {group}", name, tokens)
            for group, name, tokens in self.order
            if group in self.args.groups and self._missing(f"{self.args.name}: {group}", name)
        ]
        if not left:
            return
        plain, auto = engines(self.llm, ("plain", "auto"), heads=False)
        for thing, name, tokens in left:
            if self.over():
                return
            row = one(plain, auto, tokens, self.args.tokens)
            if row is not None:
                self._add(thing, name, row)
                yield

    def _together(self, level: int, heads: bool) -> Iterator[None]:
        """Stretches of so many requests at once."""
        kind = "with its head" if heads else "no head"
        thing = f"{self.args.name}: {level}{AT_ONCE}{kind}"
        left = [n for n in range(STRETCHES) if self._missing(thing, f"stretch {n}")]
        if not left or self.over():
            return
        fixed = FIXED[heads]
        made = engines(self.llm, ("plain", "auto", *(RECIPES[name] for name in fixed)), heads)
        spread = [tokens for _, _, tokens in self.order if len(tokens) <= LONGEST // 2]
        # a run that goes on begins elsewhere
        spread = spread[left[0] * level :] + spread[: left[0] * level]
        length = max(LOAD_TOKENS, STEPS_EACH * level)
        runs = [SteadyLoad(each.engine, spread, level, length) for each in made]
        load_in_turns(runs, level, self.over)  # the first steps are not counted
        for n in left:
            if not load_in_turns(runs, max(STRETCH_TOKENS, 16 * level), self.over):
                break
            plain, *others = (run.totals for run in runs)
            for name, totals in zip(("", *(f", {name}" for name in fixed)), others, strict=True):
                self._add(thing + name, f"stretch {n}", timed(plain, totals))
            yield
        for run in runs:
            run.close()


# ------------------------------------------------------------------------------------- summaries
def summary(record: PairedRecord) -> dict[str, dict[str, Any]]:
    """Median ratio of each thing with its interval, and where the seconds of `auto` went."""
    made = {}
    for thing, values in record.values.items():
        rows = [Timed(*row) for row in values.values()]
        ratios = np.array([row.ratio for row in rows])
        middle = estimate(np.median(ratios), np.median(ratios[draws(len(ratios))], axis=1))
        plain = [row.plain for row in rows]
        repeat = [row.repeat for row in rows]
        last = thing.rsplit(", ", 1)[-1]
        made[thing] = {
            "recipe": last if last in RECIPES else "auto",
            "prompts": len(rows),
            "speedup": middle._asdict(),
            "of all tokens": round(sum(plain) / sum(row.recipe for row in rows), 4),
            "plain against itself": round(float(np.median(repeat)), 4),
            "plain tokens / s": round(len(rows) / sum(plain), 2),
            "tokens / pass": round(float(np.mean([row.tokens_per_pass for row in rows])), 3)
            or None,
            "nodes / pass": round(float(np.mean([row.nodes_per_pass for row in rows])), 3) or None,
            "shares": [
                round(sum(getattr(row, part) for row in rows) / sum(plain), 4) for part in PARTS
            ],
        }
    return made


def prediction(record: PairedRecord) -> dict[str, Any]:
    """How far printed speedups are from the measured ones."""
    alone = [
        Timed(*row)
        for thing, values in record.values.items()
        if AT_ONCE not in thing
        for row in values.values()
    ]
    errors = [row.predicted / row.ratio - 1 for row in alone if row.predicted != UNKNOWN]
    return {
        "prompts": len(alone),
        "printed": len(errors),
        "mean error": round(float(np.mean(np.abs(errors))), 4) if errors else None,
        "mean bias": round(float(np.mean(errors)), 4) if errors else None,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the record after every prompt."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", help="a JSONL file with the categories of Spec-Bench")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--name", default=None, help="of the model in the record")
    parser.add_argument("--prompts", type=int, default=6, help="of each group")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--groups", default=",".join(GROUPS), help="of prompts; none: -")
    parser.add_argument("--at-once", default="4,16,64", help="numbers of requests; none: -")
    parser.add_argument("--seconds", type=float, default=None, help="end after so many")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    args.name = args.name or args.model
    args.groups = args.groups.split(",")
    args.at_once = [int(level) for level in args.at_once.split(",") if level != "-"]
    suite = {group: digest(prompts_of(args.suite, group, args.prompts)) for group in FROM_FILE}
    record = PairedRecord(args.json, {"tokens": args.tokens, "prompts": suite})
    busy = provenance.load()
    over = until(args.seconds)
    os.environ[HIDE] = "1"
    llm = LLM(args.model, "plain", threads=args.threads)
    origin = provenance.origin(llm.target.info, busy)
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    models = {**known.get("models", {}), args.name: origin}  # each with its own command

    before = {thing: len(values) for thing, values in record.values.items()}
    for _ in Measurement(llm, args, record, over).run():
        rows = summary(record)
        for thing, row in rows.items():  # each with the commit that added to it last
            same = len(record.values[thing]) == before.get(thing)
            earlier = known["rows"][thing].get("commit", known["commit"]) if same else None
            row["commit"] = earlier or origin["commit"]
        record.write(origin, models=models, rows=rows, predicted=prediction(record))
    for thing, row in summary(record).items():
        speed = row["speedup"]
        shares = " ".join(f"{share:.3f}" for share in row["shares"])
        sys.stdout.write(
            f"{thing:<44}{speed['mean']:.3f}  {speed['low']:.3f} to {speed['high']:.3f}"
            f"  all {row['of all tokens']:.3f}  draft verify other {shares}\n"
        )
    sys.stdout.write(f"predicted: {prediction(record)}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(f"own_model: {error}")
