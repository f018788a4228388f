"""Time per token and tokens per second while arrivals double, with and without a deadline.

    python benchmarks/deadline.py [--suite FILE] [--deadline-ms 50] [--phase 6] [--phases 6] \
        [--first 0.25] [--tokens 48] [--repeats 2] [--json FILE]

One process, one set of weights, a scheduler for each recipe. Requests arrive at even distances, and
twice as many in every phase, the same for every recipe. The recipes take turns, one step each, and
each has a clock of its own work, which stands still while others work and skips idle time: a busy
moment of the machine hits all alike, and a phase takes no longer than its work. For each phase: the
99th percentile, over the requests that ended in it, of the seconds per token after the first,
tokens per second in which there was something to decode, and quantiles of the pauses between two
steps of a request. A deadline is kept in a phase when the first of these is below it. Greedy;
repeats have other prompts as far as there are enough.
"""

import argparse
import json
import random
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from arrivals import ArrivalRun, Doubling, OwnClock, Phase, in_turns

from sapwood.bench import provenance
from sapwood.bench.measure import rotated
from sapwood.bench.suites import gather
from sapwood.core.sampling import Sampling
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.input_processor import read_sampling
from sapwood.engine.loop import Engine
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.scheduler import Scheduler
from sapwood.llm import LLM
from sapwood.recipes import resolve

MEMORY = 65536  # tokens of keys and values
NUMBERS = count()  # of runs: none shares cached prefixes with another
SPECSERVE = "merge + best(stride=8) + match + specserve(width=6, deadline={seconds})"


def runs_of(
    llm: LLM, deadline: float, load: Doubling, prompts: list[list[int]], sampling: Sampling
) -> dict[str, tuple[OwnClock, ArrivalRun]]:
    """A run of each recipe, by name, with memory and statistics of its own."""
    recipes = {"plain": "plain", "auto": "auto", "specserve": SPECSERVE.format(seconds=deadline)}
    found = {}
    for name, recipe in recipes.items():
        clock = OwnClock()
        engine = llm.bind(resolve(recipe), clock)
        cache = EngineCache(partial(itself, engine))
        pool = RequestPool(llm.target, cache, llm.text, measured=llm.profile.measured)
        scheduler = Scheduler(pool, engine.cost, now=clock)
        tenant = f"{name} {next(NUMBERS)}"
        found[name] = clock, ArrivalRun(scheduler, load, clock.skip, prompts, sampling, tenant)
    return found


def itself(engine: Engine, _: str) -> Engine:
    """The engine, whatever a request names."""
    return engine


def measure(llm: LLM, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each repeat, recipe and phase."""
    sampling = read_sampling({"max_tokens": options.tokens}, llm.target.info, llm.text)
    found = [prompt.tokens(llm.target.info, llm.text) for prompt in gather(options.suite, turns=1)]
    prompts = [tokens for tokens in found if len(tokens) <= options.longest]
    random.Random(0).shuffle(prompts)
    load = Doubling(options.first, options.phase, options.phases)
    deadline = options.deadline_ms / 1000
    warm = runs_of(llm, deadline, Doubling(2.0, 2.0, 1), prompts[::-1], sampling)
    in_turns(list(warm.values()))  # not counted
    rows = []
    for repeat in range(options.repeats):
        mine = rotated(prompts, repeat * len(load.times))
        runs = runs_of(llm, deadline, load, mine, sampling)
        for name, phases in zip(runs, in_turns(list(runs.values())), strict=True):
            made = [row(name, repeat, number, phase) for number, phase in enumerate(phases)]
            show(made, options.deadline_ms)
            rows += made
    return rows


def row(name: str, repeat: int, number: int, phase: Phase) -> dict[str, Any]:
    """Numbers of one recipe in one phase."""
    return {
        "run": name,
        "repeat": repeat,
        "phase": number,
        "arrivals_per_second": phase.rate,
        "requests_per_pass": round(phase.running, 2),
        "nodes_per_pass": round(phase.nodes, 2),
        "tokens": phase.tokens,
        "tokens_per_second": round(phase.tokens_per_second, 1),
        "p50_ms": round(1000 * phase.p50, 2),
        "p99_ms": round(1000 * phase.p99, 2),
        "per_token_p99_ms": round(1000 * phase.per_token, 2),
    }


def show(rows: list[dict[str, Any]], deadline: float) -> None:
    """Print one line for each phase."""
    for found in rows:
        kept = "kept" if found["per_token_p99_ms"] < deadline else "late"
        print(
            f"{found['run']:<10} {found['arrivals_per_second']:6.2f}/s "
            f"{found['requests_per_pass']:6.2f} at a time  nodes {found['nodes_per_pass']:6.2f}  "
            f"per token, p99 {found['per_token_p99_ms']:7.1f} ms {kept}  "
            f"pauses {found['p50_ms']:6.1f} to {found['p99_ms']:6.1f} ms  "
            f"{found['tokens_per_second']:7.1f} tokens/s",
            flush=True,
        )


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--suite", default="chat,json,edit,copy")
    parser.add_argument("--deadline-ms", type=float, default=50.0)
    parser.add_argument("--phase", type=float, default=6.0, help="seconds of a phase")
    parser.add_argument("--phases", type=int, default=6)
    parser.add_argument("--first", type=float, default=0.25, help="arrivals per second at first")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--longest", type=int, default=256, help="tokens of a prompt at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = provenance.load()
    llm = LLM(options.model, "auto")
    llm.target.memory.limit(MEMORY)
    llm.profile.widen(llm.target, print)
    rows = measure(llm, options)
    if options.json:
        made = {
            **provenance.origin(llm.target.info, load),
            "deadline_ms": options.deadline_ms,
            "phase_seconds": options.phase,
            "tokens": options.tokens,
            "rows": rows,
        }
        options.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
