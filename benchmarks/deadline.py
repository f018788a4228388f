"""Time per token and tokens per second while arrivals double, with and without a deadline.

    python benchmarks/deadline.py [--suite FILE] [--deadline-ms 50] [--phase 9] [--phases 5] \
        [--first 0.25] [--tokens 48] [--repeats 2] [--json FILE]

One process, one set of weights, a scheduler for each recipe. Requests arrive at even distances, and
twice as many in every phase; recipes take turns, each with the same arrivals and prompts. For each
phase: the 99th percentile, over the requests that ended in it, of the seconds per token after the
first, tokens per second in which there was something to decode, and quantiles of the pauses between
two steps of a request. A deadline is kept in a phase when the first of these is below it. Greedy.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from sapwood.bench import provenance
from sapwood.bench.arrivals import ArrivalRun, Doubling, Phase
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
SPECSERVE = "merge + best(stride=8) + match + specserve(width=6, deadline={seconds})"


def engines(llm: LLM, deadline: float) -> dict[str, Engine]:
    """The engines that are compared, by name."""
    recipes = {"plain": "plain", "auto": "auto", "specserve": SPECSERVE.format(seconds=deadline)}
    return {name: llm.bind(resolve(recipe)) for name, recipe in recipes.items()}


def one_run(
    llm: LLM,
    engine: Engine,
    load: Doubling,
    prompts: list[list[int]],
    sampling: Sampling,
    tenant: str,
) -> list[Phase]:
    """All phases with one recipe."""
    pool = RequestPool(
        llm.target, EngineCache(lambda _: engine), llm.text, measured=llm.profile.measured
    )
    run = ArrivalRun(Scheduler(pool, engine.cost), load, time.sleep, tenant)
    return run.run(prompts, sampling)


def measure(llm: LLM, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each repeat, recipe and phase."""
    sampling = read_sampling({"max_tokens": options.tokens}, llm.target.info, llm.text)
    found = [prompt.tokens(llm.target.info, llm.text) for prompt in gather(options.suite, turns=1)]
    prompts = [tokens for tokens in found if len(tokens) <= options.longest]
    load = Doubling(options.first, options.phase, options.phases)
    bound = engines(llm, options.deadline_ms / 1000)
    for name, engine in bound.items():  # not counted
        one_run(llm, engine, Doubling(2.0, 4.0, 1), prompts[::-1], sampling, f"{name} warm")
    rows = []
    for repeat in range(options.repeats):
        for name in rotated(list(bound), repeat):
            phases = one_run(llm, bound[name], load, prompts, sampling, f"{name} {repeat}")
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
    parser.add_argument("--phase", type=float, default=9.0, help="seconds of a phase")
    parser.add_argument("--phases", type=int, default=5)
    parser.add_argument("--first", type=float, default=0.25, help="arrivals per second at first")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--longest", type=int, default=192, help="tokens of a prompt at most")
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
