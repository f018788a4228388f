"""Many clients on one GPU: tokens per second, latencies and pauses of recipes at several loads.

    python benchmarks/gpu_serving.py --suite spec_bench.jsonl --levels 1,8,32,128 --json FILE

One process, one set of weights, the scheduler that `sapwood serve` runs. At every level each recipe
answers the same prompts, `level` at a time, in turns whose order changes from repeat to repeat.
Every text is compared with the one that plain decoding wrote for the same prompt alone. Seconds are
those from the first submission to the last token, prefill included.
"""

import argparse
import cProfile
import gc
import io
import math
import pstats
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_tools import Limit, Record

from sapwood.bench import provenance
from sapwood.bench.client_runners import ScheduledClients
from sapwood.bench.clients import ClientLoad, overall_speed
from sapwood.bench.recipe_set import read_recipes
from sapwood.bench.suites import gather
from sapwood.engine.input_processor import read_sampling
from sapwood.engine.prelaunch import prepare_batches
from sapwood.engine.warmup import warm_up
from sapwood.llm import LLM
from sapwood.recipes import resolve

BASE = "plain"
START = time.perf_counter()


def row(
    run: ScheduledClients, level: int, loads: Sequence[ClientLoad], same: list[bool]
) -> dict[str, Any]:
    """Numbers of one recipe at one load."""
    answers = [answer for load in loads for answer in load.answers]
    first = [answer.first for answer in answers]
    gaps = np.concatenate([np.diff(answer.times) for answer in answers])
    each = np.concatenate(
        [np.repeat(np.diff(one.times) / one.counts[1:], one.counts[1:]) for one in answers]
    )
    passes = [stats for stats in run.steps if stats.trees]
    nodes = sum(stats.nodes for stats in passes)
    return {
        "level": level,
        "recipe": run.name,
        "tokens_per_second": overall_speed(loads),
        "repeats": [load.tokens_per_second for load in loads],
        "first_token_ms": 1e3 * float(np.median(first)),
        "token_ms": 1e3 * float(np.median(each)),
        "token_ms_p99": 1e3 * float(np.quantile(each, 0.99)),
        "pause_ms": 1e3 * float(gaps.max()),
        "trees_per_pass": ratio(sum(stats.trees for stats in passes), len(passes)),
        "nodes_per_pass": ratio(nodes, len(passes)),
        "waste": 1 - ratio(sum(stats.accepted for stats in passes), nodes) if nodes else 0.0,
        "step_ms": 1e3 * ratio(sum(stats.seconds for stats in passes), len(passes)),
        "pass_ms": 1e3 * ratio(sum(stats.verify for stats in passes), len(passes)),
        "draft_ms": 1e3 * ratio(sum(stats.draft for stats in passes), len(passes)),
        "answers": len(answers),
        "compared": len(same),  # texts of which plain decoding alone was in time
        "same_text": sum(same),
    }


def ratio(one: float, two: float) -> float:
    """The quotient; 0 where the divisor is."""
    return one / two if two else 0.0


def measure(
    llm: LLM, prompts: Sequence[list[int]], options: argparse.Namespace, record: Record
) -> list[dict[str, Any]]:
    """One row for each level and recipe; stops at the time limit, which captures do not use up."""
    wanted = {"max_tokens": options.tokens, "temperature": options.temperature, "seed": 1}
    sampling = read_sampling(wanted, llm.target.info, llm.text)
    most = max(options.levels)
    runs = [
        ScheduledClients(llm, recipe, llm.bind(resolve(recipe)), sampling, most)
        for recipe in options.recipes
    ]
    base = ScheduledClients(llm, BASE, llm.bind(resolve(BASE)), sampling, 1)
    alone: dict[int, list[int]] = {}  # plain decoding's text of each prompt, alone
    prepare = llm.target.capabilities.prepare_batches
    if prepare is not None:
        prepare(max(options.levels), lambda _: None)
        record.say(f"passes captured after {time.perf_counter() - START:.1f} s")
        for run in runs:
            prepare_batches(run.scheduler.pool.engines.get("", "").recipe, most)
        record.say(f"drafts captured after {time.perf_counter() - START:.1f} s")
    gc.collect()
    gc.freeze()  # as the server does
    limit = Limit(options.limit_seconds)
    rows = []
    for level in options.levels:
        each = min(max(options.rounds * level, options.least), len(prompts) // options.repeats)
        loads: dict[str, list[ClientLoad]] = {run.name: [] for run in runs}
        same: dict[str, list[bool]] = {name: [] for name in loads}
        for run in runs:
            if llm.text is not None:
                warm_up(run.scheduler, llm.text.encode, [level], lambda _: None)
            run.steps.clear()
        for repeat in range(options.repeats):
            numbers = range(repeat * each, (repeat + 1) * each)
            batch = [prompts[number] for number in numbers]
            for run in runs[repeat % len(runs) :] + runs[: repeat % len(runs)]:
                if limit.left < 0:
                    break
                load = run.run(batch, level)
                loads[run.name].append(load)
            for number in numbers:
                if number not in alone and limit.left > 0:
                    alone[number] = base.run([prompts[number]], 1).answers[0].tokens
            for name, found in loads.items():
                answers = zip(numbers, found[-1].answers if found else [], strict=False)
                same[name] += [
                    alone[number] == one.tokens for number, one in answers if number in alone
                ]
        new = [row(run, level, loads[run.name], same[run.name]) for run in runs if loads[run.name]]
        rows += new
        for found in new:
            record.say(line(found))
        record.keep("rows", rows)
        if options.profile and level == options.levels[-1]:
            for run in runs:
                record.say(profiled(run, prompts[:level], level))
    return rows


def line(found: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{found['level']:>4} {found['recipe']:<8} {found['tokens_per_second']:9.0f} tokens/s  "
        f"first {found['first_token_ms']:7.1f}  token {found['token_ms']:6.2f} "
        f"p99 {found['token_ms_p99']:7.2f}  pause {found['pause_ms']:7.1f} ms  "
        f"trees {found['trees_per_pass']:5.1f} nodes {found['nodes_per_pass']:6.1f} "
        f"step {found['step_ms']:6.2f} pass {found['pass_ms']:6.2f} "
        f"draft {found['draft_ms']:6.2f}  "
        f"same {found['same_text']}/{found['compared']}"
    )


def profiled(run: ScheduledClients, prompts: Sequence[list[int]], level: int) -> str:
    """The functions of the host that take most time."""
    profile = cProfile.Profile()
    profile.enable()
    run.run(prompts, level)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(28)
    kept = [one for one in text.getvalue().splitlines() if one.strip()][3:]
    return "\n".join([f"--- {run.name}, {level} at a time", *kept])


def suite(llm: LLM, options: argparse.Namespace) -> list[list[int]]:
    """The prompts, repeated if there are too few."""
    found = [prompt.tokens(llm.target.info, llm.text) for prompt in gather(options.suite, turns=1)]
    short = [tokens for tokens in found if len(tokens) <= options.longest]
    need = options.repeats * max(options.rounds * max(options.levels), options.least)
    times = math.ceil(need / len(short))
    return (short * times)[:need]


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--suite", required=True, help="built-in suites or JSONL files")
    parser.add_argument(
        "--levels", default="1,8,32,128", type=lambda text: [int(part) for part in text.split(",")]
    )
    parser.add_argument(
        "--recipes", default="plain,auto", type=lambda text: list(read_recipes(text))
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=2, help="prompts of each client in a repeat at the least"
    )
    parser.add_argument("--least", type=int, default=16, help="prompts of a repeat at the least")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a prompt at most")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--profile", action="store_true", help="profile the host at the last level")
    parser.add_argument("--limit-seconds", type=float, default=300)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def stamped(record: Record, start: float, text: str) -> None:
    """Print a line of progress with the seconds since the start."""
    record.say(f"{time.perf_counter() - start:6.1f} s  {text}")


def main() -> None:
    """Read the options, measure, print."""
    options = arguments()
    record = Record(options.json)
    load = provenance.load()
    start = time.perf_counter()
    progress = partial(stamped, record, start)
    llm = LLM(options.model, "auto", device=options.device, dtype=options.dtype, progress=progress)
    record.say(f"loaded in {time.perf_counter() - start:.1f} s")
    llm.profile.widen(llm.target, progress)
    record.say(f"ready after {time.perf_counter() - start:.1f} s")
    record.keep("origin", provenance.origin(llm.target.info, load))
    measure(llm, suite(llm, options), options, record)


if __name__ == "__main__":
    main()
