"""`auto` without a trained head against plain decoding, on any model, in pairs of runs.

    python benchmarks/own_model.py SUITE.jsonl --model smollm2 --json FILE [--seconds 300]
    python benchmarks/own_model.py SUITE.jsonl --model FILE.gguf --name gemma-3-270m --json FILE

One request at a time in groups of prompts, and several at once, of a model that has a head also
with it. `plain` and `auto` share the loaded model and take turns: plain, auto, plain on each prompt
or batch, so that a machine that becomes slower or faster treats both alike, and a prompt's ratio is
that of its own three runs. `auto` begins with nothing learned and keeps what it learns; each prompt
is new to it. Prefill is not timed; greedy throughout. A group's figure is the median of its
prompts' ratios, with a 95 % bootstrap interval over prompts. The predicted speedup is the one that
`sapwood run` prints, where it prints one.

Several models go into one record, one command after the other. `--seconds` ends a run early; the
same command then goes on, with an `auto` that begins anew.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from paired_record import PairedRecord, draws, estimate, until

from sapwood.bench import provenance
from sapwood.bench.batched import decode_together
from sapwood.bench.measure import BenchRun
from sapwood.bench.suites import BenchPrompt, digest, gather
from sapwood.common.drafter_store import HIDE, has
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.engine.plain_speed import measured_speedup
from sapwood.errors import SapwoodError
from sapwood.llm import LLM

FROM_FILE = {"chat": "mt_bench", "qa": "qa", "translation": "translation"}
FROM_FILE |= {"math": "math_reasoning", "rag": "rag"}
BUILT_IN = ("random", "copy", "edit")
AT_ONCE = " at once, "
LEVELS = (4, 16)  # requests at once
BATCHED = 48  # prompts that are decoded at once, in batches of each level
BATCH_TOKENS = 64
LONGEST = 700  # tokens of a prompt, so that prefill does not take most of the time
WARM_UP = "Name three rivers and say where they rise."
PARTS = ("draft", "verify", "other")  # of the seconds of a run
UNKNOWN = -1.0  # in place of a prediction that is not printed


class Timed(NamedTuple):
    """Seconds per token of the three runs on a prompt, and where those of `auto` went."""

    before: float  # plain
    auto: float
    after: float  # plain
    predicted: float = UNKNOWN  # speedup
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0
    tokens_per_pass: float = 0.0  # of one request
    nodes_per_pass: float = 0.0

    @property
    def ratio(self) -> float:
        """Tokens per second of `auto` over those of plain decoding."""
        return (self.before + self.after) / 2 / self.auto


# ------------------------------------------------------------------------------------- measuring
def one(plain: LLM, auto: LLM, prompt: list[int], tokens: int) -> Timed:
    """Decode a prompt alone."""

    def spent(llm: LLM) -> Any:
        return llm.generate(prompt, max_tokens=tokens, progress=False)

    first, made, last = spent(plain), spent(auto), spent(plain)
    before, middle, after = (
        (out.stats.seconds - out.stats.prefill_s) / out.stats.tokens for out in (first, made, last)
    )
    stats = made.stats
    told = measured_speedup(plain.engine, prompt, made)
    return Timed(
        before,
        middle,
        after,
        predicted=UNKNOWN if told is None else told,
        draft=stats.draft_s / stats.tokens,
        verify=stats.verify_s / stats.tokens,
        other=stats.other_s / stats.tokens,
        tokens_per_pass=stats.tokens_per_pass,
        nodes_per_pass=stats.drafted / stats.passes,
    )


def several(plain: Engine, auto: Engine, prompts: Sequence[list[int]]) -> Timed:
    """Decode prompts at once."""
    before, made, after = (shared(engine, prompts) for engine in (plain, auto, plain))
    tokens = sum(run.length for run in made)
    return Timed(
        pace(before),
        pace(made),
        pace(after),
        draft=sum(run.draft for run in made) / tokens,
        verify=sum(run.verify for run in made) / tokens,
        other=sum(run.other for run in made) / tokens,
        tokens_per_pass=tokens / sum(run.passes for run in made),
        nodes_per_pass=sum(run.nodes for run in made) / sum(run.passes for run in made),
    )


def shared(engine: Engine, prompts: Sequence[list[int]]) -> list[BenchRun]:
    """Runs of prompts that are decoded at once."""
    return decode_together(engine, prompts, Sampling(max_tokens=BATCH_TOKENS), measured=True)


def pace(runs: Sequence[BenchRun]) -> float:
    """Seconds per token of runs that shared their passes."""
    return sum(run.seconds for run in runs) / sum(run.length for run in runs)


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


def engines(llm: LLM, heads: bool) -> tuple[LLM, LLM]:
    """Plain decoding and `auto` of a loaded model, both warmed up."""
    os.environ[HIDE] = "0" if heads else "1"
    made = llm.with_recipe("plain"), llm.with_recipe("auto")
    for each in made:
        each.generate(WARM_UP, max_tokens=24, progress=False)
    return made


def measure(
    llm: LLM, args: argparse.Namespace, record: PairedRecord, say: Any
) -> Iterator[tuple[str, str]]:
    """Measure what is missing; yields each thing and prompt after it was added."""
    groups = {
        group: fitting(llm, prompts_of(args.suite, group, args.prompts))
        for group in (*FROM_FILE, *BUILT_IN)
    }
    order = [
        (f"{args.name}: {group}", name, tokens)
        for place in range(args.prompts)
        for group, found in groups.items()
        for name, tokens in list(found.items())[place : place + 1]
    ]
    left = [one for one in order if one[1] not in record.values.get(one[0], {})]
    if left:
        plain, auto = engines(llm, heads=False)
        for thing, name, tokens in left:
            found = one(plain, auto, tokens, args.tokens)
            say(thing, name, found)
            record.add(thing, name, found)
            yield thing, name
    info = llm.target.info
    asked = [False, True] if has("eagle3", info.model, info.weights) else [False]
    spread = [tokens for _, _, tokens in order if len(tokens) <= LONGEST // 2][:BATCHED]
    for heads in asked:
        kind = "with its head" if heads else "no head"
        todo = []
        for level in (*([1] if heads else []), *LEVELS):
            thing = f"{args.name}: {level}{AT_ONCE}{kind}"
            batches = [spread[at : at + level] for at in range(0, len(spread), level)]
            done = record.values.get(thing, {})
            todo += [
                (thing, f"batch {n}", batch)
                for n, batch in enumerate(batches[:16])
                if len(batch) == level and f"batch {n}" not in done
            ]
        if todo:
            plain, auto = engines(llm, heads)
            for thing, name, batch in todo:
                found = several(plain.engine, auto.engine, batch)
                say(thing, name, found)
                record.add(thing, name, found)
                yield thing, name


# ------------------------------------------------------------------------------------- summaries
def summary(record: PairedRecord) -> dict[str, dict[str, Any]]:
    """Median ratio of each thing with its interval, and where the seconds of `auto` went."""
    made = {}
    for thing, values in record.values.items():
        rows = [Timed(*row) for row in values.values()]
        ratios = np.array([row.ratio for row in rows])
        middle = estimate(np.median(ratios), np.median(ratios[draws(len(ratios))], axis=1))
        plain = [(row.before + row.after) / 2 for row in rows]
        repeat = [row.before / row.after for row in rows]
        made[thing] = {
            "prompts": len(rows),
            "speedup": middle._asdict(),
            "of all tokens": round(sum(plain) / sum(row.auto for row in rows), 4),
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
    parser.add_argument("--seconds", type=float, default=None, help="end after so many")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    args.name = args.name or args.model
    suite = {group: digest(prompts_of(args.suite, group, args.prompts)) for group in FROM_FILE}
    record = PairedRecord(args.json, {"tokens": args.tokens, "prompts": suite})
    busy = provenance.load()
    over = until(args.seconds)
    os.environ[HIDE] = "1"
    llm = LLM(args.model, "plain", threads=args.threads)
    origin = provenance.origin(llm.target.info, busy)
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    models = {**known.get("models", {}), args.name: origin}  # each with its own command

    def say(thing: str, name: str, found: Timed) -> None:
        sys.stderr.write(f"{thing:<36}{name:<26}{found.ratio:.3f}\n")

    for _ in measure(llm, args, record, say):
        record.write(origin, models=models, rows=summary(record), predicted=prediction(record))
        if over():
            break
    for thing, row in summary(record).items():
        speed = row["speedup"]
        shares = " ".join(f"{share:.3f}" for share in row["shares"])
        sys.stdout.write(
            f"{thing:<36}{speed['mean']:.3f}  {speed['low']:.3f} to {speed['high']:.3f}"
            f"  all {row['of all tokens']:.3f}  draft verify other {shares}\n"
        )
    sys.stdout.write(f"predicted: {prediction(record)}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(f"own_model: {error}")
