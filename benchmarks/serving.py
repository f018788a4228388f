"""Many requests on one model: tokens per second of recipes at several loads.

    python benchmarks/serving.py [--suite chat,copy] [--levels 1,4,16] [--tokens 64] [--repeats 3] \
        [--json FILE]

One process, one set of weights. In every repeat each recipe answers the same prompts, `level` at a
time, in turns whose order changes, so that a busy minute hits all of them alike; no prompt is used
twice at a level. Seconds are those from the first submission to the last token, prefill included.
At one request at a time `stream` is what `sapwood run` does, without a scheduler. Greedy
throughout, and every text is compared with plain's.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from sapwood.bench import provenance
from sapwood.bench.client_runners import ScheduledClients
from sapwood.bench.suites import gather
from sapwood.engine.input_processor import read_sampling
from sapwood.engine.step_stats import StepStats
from sapwood.llm import LLM
from sapwood.recipes import resolve

RUNS = {
    "plain": "plain",
    "pld": "ngram + chain + match + fixed(nodes=3, depth=3, width=1)",
    "suffix": "suffix + best(estimator=raw) + match + fixed(nodes=4, depth=4, width=2)",
    "eagle3": "eagle3 + best(stride=8, estimator=raw) + match + fixed(nodes=4, depth=3, width=3)",
    "auto": "auto",
}
STREAM = "stream"  # auto without a scheduler, at one request at a time
MEMORY = 32768  # tokens
MOST_AT_ONCE = 256  # requests


class Contender:
    """One recipe under a scheduler of its own, on weights that all share."""

    def __init__(self, llm: LLM, name: str, recipe: str, most: int) -> None:
        self.name = name
        sampling = read_sampling({"max_tokens": most}, llm.target.info, llm.text)
        engine = llm.bind(resolve(recipe))
        self.clients = ScheduledClients(llm, name, engine, sampling, MOST_AT_ONCE)
        self.steps = self.clients.steps

    def run(self, prompts: list[list[int]], level: int) -> tuple[list[list[int]], float]:
        """Answer prompts, `level` at a time; tokens and seconds."""
        load = self.clients.run(prompts, level)
        return [answer.tokens for answer in load.answers], load.seconds


class Streamed:
    """The same recipe as in `sapwood run`, one request after the other."""

    def __init__(self, llm: LLM, most: int) -> None:
        self.llm = llm
        self.most = most  # tokens of an answer
        self.name = STREAM
        self.steps: list[StepStats] = []

    def run(self, prompts: list[list[int]], _: int) -> tuple[list[list[int]], float]:
        """Answer prompts; texts and seconds."""
        forget(self.llm)
        start = time.perf_counter()
        texts = [
            [
                token
                for step in self.llm.stream(prompt, max_tokens=self.most)
                for token in step.tokens
            ]
            for prompt in prompts
        ]
        return texts, time.perf_counter() - start


def forget(llm: LLM) -> None:
    """Clear the prefix cache."""
    memory: Any = llm.target.memory
    memory.forget()


def measure(
    llm: LLM, prompts: list[list[int]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row for each level and recipe."""
    rows = []
    for level in options.levels:
        most = options.tokens
        runs: list[Any] = [Contender(llm, name, RUNS[name], most) for name in options.runs]
        if level == 1 and "auto" in options.runs:
            runs.append(Streamed(llm.with_recipe("auto"), most))
        for run in runs:
            run.run([prompts[0][:16]], 1)  # not counted
            run.steps.clear()
        each = max(2 * level, options.least)
        spent: dict[str, list[tuple[int, float]]] = {run.name: [] for run in runs}
        same = dict.fromkeys(spent, 0)
        for repeat in range(options.repeats):
            batch = prompts[repeat * each : (repeat + 1) * each]
            texts = {}
            for run in runs[repeat % len(runs) :] + runs[: repeat % len(runs)]:
                texts[run.name], seconds = run.run(batch, level)
                spent[run.name].append((sum(map(len, texts[run.name])), seconds))
            for name, found in texts.items():
                same[name] += sum(
                    a == b for a, b in zip(found, texts[options.runs[0]], strict=True)
                )
        rows += [row(run, level, spent, same[run.name], options.runs[0]) for run in runs]
        show(rows[-len(runs) :])
    return rows


def row(
    run: Any, level: int, spent: dict[str, list[tuple[int, float]]], same: int, first: str
) -> dict[str, Any]:
    """Numbers of one recipe at one load."""
    tokens, seconds = (sum(pair[place] for pair in spent[run.name]) for place in (0, 1))
    ratios = [a / b * d / c for (a, b), (c, d) in zip(spent[run.name], spent[first], strict=True)]
    passes = [stats for stats in run.steps if stats.trees]
    return {
        "level": level,
        "run": run.name,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "against_first": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "trees_per_pass": mean([stats.trees for stats in passes]),
        "nodes_per_pass": mean([stats.nodes for stats in passes]),
        "draft_share": mean([stats.draft / stats.seconds for stats in passes]),
        "same_text_as_first": same,
    }


def mean(values: list[float]) -> float:
    """The rounded mean; 0 without values."""
    return round(sum(values) / len(values), 3) if values else 0.0


def show(rows: list[dict[str, Any]]) -> None:
    """Print one line per row."""
    for found in rows:
        print(
            f"{found['level']:>3} {found['run']:<8} {found['tokens_per_second']:8.2f} tokens/s "
            f"{found['against_first']:6.3f}  nodes {found['nodes_per_pass']:6.2f} "
            f"trees {found['trees_per_pass']:5.2f}  draft {found['draft_share']:.3f} "
            f"same {found['same_text_as_first']}",
            flush=True,
        )


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Comparisons of `auto` with the others, level by level."""
    lines = []
    for level in sorted({found["level"] for found in rows}):
        rates = {found["run"]: found["against_first"] for found in rows if found["level"] == level}
        others = {name: rate for name, rate in rates.items() if name not in ("auto", STREAM)}
        if "auto" in rates and others:
            best = max(others, key=others.__getitem__)
            share = rates["auto"] / others[best]
            lines.append(f"{level} at a time: auto has {share:.3f} of the best other, {best}")
        if STREAM in rates:
            lines.append(
                f"{level} at a time: auto has {rates['auto'] / rates[STREAM]:.3f} of `sapwood run`"
            )
    return lines


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--suite", default="chat,json,edit,copy", help="built-in suites or JSONL files"
    )
    parser.add_argument(
        "--levels", default="1,4,16", type=lambda text: [int(part) for part in text.split(",")]
    )
    parser.add_argument("--runs", default=",".join(RUNS), type=lambda text: text.split(","))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=int, default=4, help="prompts of a repeat at the least")
    parser.add_argument(
        "--longest", type=int, default=256, help="tokens of a prompt; longer ones are left out"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = provenance.load()
    llm = LLM(options.model, "auto", threads=options.threads)
    llm.target.memory.limit(MEMORY)
    llm.profile.widen(llm.target, print)
    rows = measure(llm, suite(llm, options), options)
    for line in verdicts(rows):
        print(line)
    if options.json:
        options.json.write_text(
            json.dumps({**provenance.origin(llm.target.info, load), "rows": rows}, indent=1) + "\n"
        )


def suite(llm: LLM, options: argparse.Namespace) -> list[list[int]]:
    """As many prompts as the largest load needs, repeated if there are too few."""
    found = [prompt.tokens(llm.target.info, llm.text) for prompt in gather(options.suite, turns=1)]
    short = [tokens for tokens in found if len(tokens) <= options.longest]
    need = options.repeats * max(2 * max(options.levels), options.least)
    return [short[place % len(short)] for place in range(need)]


if __name__ == "__main__":
    main()
