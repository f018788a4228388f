"""A server under load: many clients, some of which leave or send invalid requests, and signals.

    python benchmarks/load.py [--requests 2000] [--clients 64] [--recipe auto] [--json FILE]

The model is a tiny one with random weights, made on the spot: its answers are nonsense, but each is
known from asking alone before, and must be the same under load. Checked at the end: no 5xx, no
stuck request, every answer right, no KV block held, memory flat over the second half; after SIGTERM
running requests finish; after SIGKILL a new server answers within seconds.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.load_clients import Seen, Wish, crowd, get, questions, send, wishes
from benchmarks.load_server import Served, make_tiny

KNOWN = 48  # different questions
FLAT = 0.02  # share by which memory may grow over the second half
LOOK = 0.25  # seconds between two samples of the server's memory


@dataclass
class Report:
    """Results of the load test."""

    requests: int
    clients: int
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)  # of requests whose status was read
    whole: int = 0  # answers read to their end
    left: int = 0  # clients that left
    nonsense: int = 0
    tokens_per_second: float = 0.0  # of answers read to their end
    # to the first text, by share of requests
    first_ms: dict[str, float] = field(default_factory=dict)
    request_ms: dict[str, float] = field(default_factory=dict)
    passes: float = 0.0
    tokens_per_pass: float = 0.0  # of all requests together
    # at the start, in the middle, at the end
    memory_mb: dict[str, float] = field(default_factory=dict)
    blocks_in_use: float = -1.0  # after all clients have left
    drain_s: float = 0.0  # from SIGTERM to the end of the process
    drained: int = 0  # answers running at SIGTERM that were completed
    restart_s: float = 0.0  # from SIGKILL to the first answer of a new server
    faults: list[str] = field(default_factory=list)  # violations


async def watched(
    server: Served, wanted: list[Wish], clients: int
) -> tuple[list[Seen], list[float]]:
    """Run the clients, and sample the server's memory meanwhile."""
    seen: list[float] = []

    async def look() -> None:
        while True:
            seen.append(server.memory())
            await asyncio.sleep(LOOK)

    looking = asyncio.ensure_future(look())
    try:
        return await crowd(server.port, wanted, clients), seen
    finally:
        looking.cancel()


def judge(done: list[Seen], right: dict[str, str], report: Report) -> None:
    """Compare every answer with the one that was given alone."""
    statuses = Counter(str(seen.status) for seen in done if seen.status)
    report.statuses = dict(sorted(statuses.items()))
    faults = report.faults
    for seen in done:
        wish = seen.wish
        expected = right.get(seen.wish.key, "")
        if seen.trouble:
            faults.append(f"{wish.kind}: {seen.trouble}")
        elif wish.kind == "nonsense" and not 400 <= seen.status < 500:
            faults.append(f"nonsense {wish.body[:60]!r} got {seen.status}")
        elif wish.kind == "whole" and (seen.status, seen.complete) != (200, True):
            faults.append(f"an answer ended early, status {seen.status}")
        elif wish.kind == "whole" and seen.text != expected:
            faults.append(f"under load {seen.text!r}, alone {expected!r}")
        elif wish.kind == "leaving" and not expected.startswith(seen.text):
            faults.append(f"before leaving {seen.text!r}, alone {expected!r}")
    whole = [seen for seen in done if seen.wish.kind == "whole"]
    report.whole = len(whole)
    report.left = sum(seen.wish.kind == "leaving" for seen in done)
    report.nonsense = len(done) - report.whole - report.left
    report.first_ms = shares([1000 * seen.first for seen in whole if seen.first])
    report.request_ms = shares([1000 * seen.seconds for seen in whole])


def shares(values: list[float]) -> dict[str, float]:
    """Median and high quantiles; empty without values."""
    if not values:
        return {}
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else values * 99
    return {
        name: round(cuts[place], 1) for name, place in (("50 %", 49), ("90 %", 89), ("99 %", 98))
    }


def under_load(server: Served, report: Report, seed: int) -> dict[str, str]:
    """The main part: all clients at once; returns the right answers."""
    asked = questions(KNOWN, seed)
    alone = asyncio.run(
        crowd(server.port, [Wish("whole", question) for question in asked], clients=1)
    )
    right = {seen.wish.key: seen.text for seen in alone}
    report.faults += [
        f"alone: {seen.trouble or seen.status}"
        for seen in alone
        if seen.trouble or not seen.complete
    ]
    before = [server.number(name) for name in ("sapwood_tokens_total", "sapwood_passes_total")]
    began = time.monotonic()
    done, memory = asyncio.run(
        watched(server, wishes(asked, report.requests, seed + 1), report.clients)
    )
    report.seconds = round(time.monotonic() - began, 2)
    judge(done, right, report)
    tokens, passes = (
        server.number(name) - old
        for name, old in zip(("sapwood_tokens_total", "sapwood_passes_total"), before, strict=True)
    )
    report.passes = passes
    report.tokens_per_pass = round(tokens / max(passes, 1), 2)
    report.tokens_per_second = round(tokens / report.seconds, 1)
    flat(memory, report)
    freed(server, report)
    return right


def flat(memory: list[float], report: Report) -> None:
    """Memory over the second half: medians of its first and of its last third."""
    half = memory[len(memory) // 2 :]
    third = max(len(half) // 3, 1)
    middle = statistics.median(half[:third])
    last = statistics.median(half[-third:])
    report.memory_mb = {
        "start": round(memory[0], 1),
        "middle": round(middle, 1),
        "end": round(last, 1),
    }
    if last > (1 + FLAT) * middle:
        report.faults.append(f"memory grew from {middle:.1f} to {last:.1f} MB over the second half")


def freed(server: Served, report: Report) -> None:
    """Check that no request and no KV block is left."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        report.blocks_in_use = server.number('sapwood_kv_blocks{kind="used"}')
        busy = server.number("sapwood_requests_now")
        if not busy and not report.blocks_in_use:
            return
        time.sleep(0.1)
    report.faults.append(f"{report.blocks_in_use:g} blocks and {busy:g} requests are left over")


def drained(server: Served, right: dict[str, str], report: Report) -> None:
    """SIGTERM during answers: all of them are completed, then the process ends."""
    asked = [json.loads(key) for key in right]

    async def play() -> tuple[list[Seen], float]:
        talks = [
            asyncio.ensure_future(send(server.port, Wish("whole", asked[place % len(asked)])))
            for place in range(report.clients)
        ]
        while server_requests(await get(server.port, "/metrics")) < report.clients / 2:
            await asyncio.sleep(0.01)
            if all(talk.done() for talk in talks):
                break
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        return [await talk for talk in talks], began

    done, began = asyncio.run(play())
    code = server.wait()
    report.drain_s = round(time.monotonic() - began, 2)
    for seen in done:
        if seen.status == 503 or (seen.status == 0 and "Connect" in seen.trouble):
            continue  # came after the signal
        if seen.trouble or not seen.complete or seen.text != right[seen.wish.key]:
            report.faults.append(f"cut while draining: {seen.trouble or seen.status} {seen.text!r}")
        else:
            report.drained += 1
    if code != 0:
        report.faults.append(f"the server ended with {code} after SIGTERM")
    if not report.drained:
        report.faults.append("no request was running at SIGTERM")


def server_requests(answer: tuple[int, str]) -> float:
    """Number of requests in a server's metrics."""
    return sum(
        float(value)
        for value in re.findall(r"^sapwood_requests_now\{[^}]*\} (\S+)$", answer[1], re.MULTILINE)
    )


def killed(
    model: str, folder: Path, options: list[str], right: dict[str, str], report: Report
) -> None:
    """SIGKILL in the middle of answers; a new server on the same files answers as before."""
    asked = [json.loads(key) for key in right]
    server = Served(model, folder, options)

    async def play() -> None:
        talks = [
            asyncio.ensure_future(send(server.port, Wish("whole", asked[place])))
            for place in range(8)
        ]
        await asyncio.sleep(0.3)
        server.process.send_signal(signal.SIGKILL)
        await asyncio.gather(*talks)

    asyncio.run(play())
    server.end(signal.SIGKILL)
    began = time.monotonic()
    server = Served(model, folder, options)
    [seen] = asyncio.run(crowd(server.port, [Wish("whole", asked[0])], clients=1))
    report.restart_s = round(time.monotonic() - began, 2)
    if seen.text != right[seen.wish.key] or not seen.complete:
        report.faults.append(
            f"after the restart {seen.text!r} {seen.trouble}, before {right[seen.wish.key]!r}"
        )
    server.end()


def main(arguments: list[str] | None = None) -> Report:
    """Run everything and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--recipe", default="auto")
    parser.add_argument(
        "--memory", type=int, default=0, help="tokens of all texts together; few make requests wait"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    report = Report(given.requests, given.clients)
    with tempfile.TemporaryDirectory(prefix="sapwood-load-") as place:
        folder = Path(place)
        model = make_tiny(folder / "tiny")
        options = ["--recipe", given.recipe, "--threads", "1"]
        options += ["--memory", str(given.memory)] if given.memory else []
        server = Served(model, folder, options)
        right = under_load(server, report, given.seed)
        drained(server, right, report)
        killed(model, folder, options, right, report)
    show(report, given.json)
    return report


def show(report: Report, path: Path | None) -> None:
    """Print the report, and write it to a file if one is named."""
    record: dict[str, Any] = asdict(report)
    for name, value in record.items():
        if name != "faults":
            print(f"{name:18} {value}")
    for fault, count in Counter(report.faults).most_common(20):
        print(f"FAULT x{count}: {fault}")
    print("all as it should be" if not report.faults else f"{len(report.faults)} faults")
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(bool(main().faults))
