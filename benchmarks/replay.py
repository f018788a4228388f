"""Accuracy of replay: recipes replayed on a recorded trace, beside real runs on the same prompts.

    python benchmarks/replay.py SUITE [--limit 8] [--max-tokens 64] [--json FILE]

Everything runs on one thread and is timed in processor seconds, so that a shared machine does not
matter.
"""

import time

time.perf_counter = time.process_time  # before any other import uses the clock

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from sapwood.bench.measure import decode  # noqa: E402
from sapwood.bench.suites import gather  # noqa: E402
from sapwood.core.sampling import Sampling  # noqa: E402
from sapwood.engine.cost_profiler import CostProfile  # noqa: E402
from sapwood.engine.outputs import collect  # noqa: E402
from sapwood.llm import LLM  # noqa: E402
from sapwood.trace.read import read  # noqa: E402
from sapwood.trace.record import opened, traced  # noqa: E402
from sapwood.trace.replay import TracePlayer, differences  # noqa: E402

RECIPES = (
    "plain",
    "eagle3",
    "suffix",
    "pld",
    "merge + best + match + fixed(nodes=8, depth=6, width=4)",
    "eagle3 + chain + match + fixed(nodes=4, depth=4, width=1)",
)
Sums = dict[str, list[float]]  # recipe -> tokens, passes, seconds


def measured(model: str, folder: Path) -> LLM:
    """The model on one thread, with a cost model of its own in processor seconds."""
    llm = LLM(model, "plain", threads=1)
    llm.profile = CostProfile(folder / "profile.json")
    llm.profile.measure(llm.target, lambda _: None, quick=False)
    return llm


def real_runs(llm: LLM, prompts: Sequence[Sequence[int]], length: int, path: Path) -> Sums:
    """Record `auto`, and run every recipe on the same prompts in turn."""
    assert llm.text is not None
    engines = {name: llm.with_recipe(name).engine for name in RECIPES}
    sums: Sums = {name: [0.0, 0.0, 0.0] for name in RECIPES}
    auto = llm.with_recipe("auto")
    with opened(path, auto, "auto", llm.target.info.model, {"max_tokens": length}) as writer:
        for place, prompt in enumerate(prompts):
            collect(traced(auto, list(prompt), writer, f"prompt {place + 1}", max_tokens=length))
            for name, engine in engines.items():
                run = decode(engine, prompt, Sampling(max_tokens=length, stop_ids=llm.text.eos))
                for at, value in enumerate((len(run.tokens), run.passes, run.seconds)):
                    sums[name][at] += value
    return sums


def compare(llm: LLM, path: Path, sums: Sums) -> dict[str, Any]:
    """Replay every recipe on the trace."""
    trace = read(path)
    player = TracePlayer(trace, llm)
    exact = not differences(trace, player.replay_recorded())
    player.calibrate()
    plain = player.play("plain")
    rows = []
    pace = sums["plain"][2] / sums["plain"][0]
    for name, (tokens, passes, seconds) in sums.items():
        row = player.play(name).row(plain)
        rows.append(
            {
                "recipe": name,
                "tokens_per_pass": row["tokens_per_pass"],
                "real_tokens_per_pass": tokens / passes,
                "speedup": row["speedup"],
                "real_speedup": pace / (seconds / tokens),
            }
        )
    return {"exact": exact, "scale": player.scale, "rows": rows}


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("suite")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--limit", type=int, default=8)
    options.add_argument("--max-tokens", type=int, default=64)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        llm = measured(given.model, Path(folder))
        prompts = [
            prompt.tokens(llm.target.info, llm.text)
            for prompt in gather(given.suite, (), given.limit)
        ]
        path = Path(folder) / "trace.jsonl"
        found = compare(llm, path, real_runs(llm, prompts, given.max_tokens, path))
    print(f"the recorded recipe replays exactly: {found['exact']}")
    heads = ["recipe", "tokens per pass, replayed", "real", "speedup, replayed", "real"]
    print(f"| {' | '.join(heads)} |\n|---|---|---|---|---|")
    for row in found["rows"]:
        numbers = [f"{row[name]:.3f}" for name in row if name != "recipe"]
        print(f"| {row['recipe']} | {' | '.join(numbers)} |")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
