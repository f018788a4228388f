"""Rounds that run on the device, by their shape: host and device milliseconds, tokens.

    python benchmarks/gpu_rounds.py --suite spec_bench.jsonl --levels 8,32 --json FILE

Runs `gpu_serving.py` with its options, and times every round on the way: how long the host takes
to launch it, how long it waits for the verdicts, and how long the whole round takes.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_serving

from sapwood.core.protocols import PrefillChunk
from sapwood.core.types import SharedPass
from sapwood.engine.request import Request
from sapwood.engine.rounds_ahead import RoundOnDevice, RoundsAhead
from sapwood.engine.run_ahead import PendingStep

LEAST = 10  # rounds of a shape that is shown

Shape = tuple[int, int, int]  # powers of two of requests, nodes, depth


class TimedRounds:
    """Sums of the seconds of rounds, by shape."""

    def __init__(self) -> None:
        self.sums: dict[Shape, Counter[str]] = {}
        self.launch = RoundsAhead._launch
        self.read = RoundsAhead.read

    def install(self) -> None:
        """Time the rounds of every scheduler from now on."""
        timer = self

        def launch(
            rounds: RoundsAhead, requests: Sequence[Request], chunks: Sequence[PrefillChunk]
        ) -> None:
            start = time.perf_counter()
            timer.launch(rounds, requests, chunks)
            if rounds.last is not None:
                timer.add(rounds.last, launch=time.perf_counter() - start)

        def read(rounds: RoundsAhead, batch: RoundOnDevice) -> tuple[SharedPass, list[PendingStep]]:
            start = time.perf_counter()
            results = batch.launched.read()
            waited = time.perf_counter() - start
            found = timer.read(rounds, batch)
            timer.add(
                batch,
                wait=waited,
                read=time.perf_counter() - start - waited,
                round=rounds.seconds,
                draft=batch.launched.draft_seconds,
                rounds=1,
                requests=len(results),
                prefill=batch.prefill,
                tokens=sum(len(result.verdict.path) for result in results),
            )
            return found

        RoundsAhead._launch = launch  # type: ignore[method-assign]
        RoundsAhead.read = read  # type: ignore[method-assign]

    def add(self, batch: RoundOnDevice, **numbers: float) -> None:
        """Add to the sums of a round's shape."""
        shape = len(batch.requests).bit_length(), batch.shape.nodes, batch.shape.depth
        sums = self.sums.setdefault(shape, Counter())
        for name, number in numbers.items():
            sums[name] += number  # type: ignore[assignment]

    def rows(self) -> list[dict[str, Any]]:
        """Means of each shape that was run often enough."""
        found = []
        for (_, nodes, depth), sums in sorted(self.sums.items()):
            count = sums["rounds"]
            if count >= LEAST:
                row: dict[str, Any] = {"nodes": nodes, "depth": depth, "rounds": int(count)}
                for name in ("requests", "prefill"):
                    row[name] = sums[name] / count
                for name in ("round", "launch", "wait", "read", "draft"):
                    row[f"{name}_ms"] = 1e3 * sums[name] / count
                row["tokens"] = sums["tokens"] / sums["requests"]
                found.append(row)
        return found


def main() -> None:
    """Run the serving benchmark, print the rounds, and add them to its record."""
    timed = TimedRounds()
    timed.install()
    gpu_serving.main()
    for row in timed.rows():
        print(" ".join(f"{name} {number:.4g}" for name, number in row.items()))
    if "--json" in sys.argv:
        file = Path(sys.argv[sys.argv.index("--json") + 1])
        record = json.loads(file.read_text())
        file.write_text(json.dumps({**record, "rounds": timed.rows()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
