"""Replicas under load that are killed again and again: every stream must complete, unchanged.

    python benchmarks/fleet.py [--requests 2000] [--clients 64] [--replicas 2] [--json FILE]

The model is a tiny one with random weights, made on the spot. One server answers every question
alone; then the same questions go to `sapwood serve --replicas N`, many at a time, while replicas
are killed with SIGKILL every few seconds. Checked: every stream completes with the text of the
unbroken run, under one id, greedy and at temperature 1, with penalties and with a JSON schema.
Afterwards the time that the front adds to a request is measured, in turns with the single server.
"""

import argparse
import asyncio
import json
import os
import random
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
from benchmarks.load import shares
from benchmarks.load_clients import LETTERS, Seen, Wish, crowd, send
from benchmarks.load_server import Served, make_tiny

from sapwood.bench import provenance

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}
PATIENCE_S = 600.0  # as long as a server lets a request run
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature 1": {"temperature": 1},
    "temperature 1, penalties": {
        "temperature": 1,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.5,
    },
    "greedy, repetition penalty": {"temperature": 0, "repetition_penalty": 1.3},
    "temperature 1, penalty, JSON schema": {
        "temperature": 1,
        "presence_penalty": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
}


@dataclass
class FleetReport:
    """Results of the test."""

    requests: int
    clients: int
    replicas: int
    recipe: str
    seconds: float = 0.0
    complete: int = 0  # streams that ended with the right text
    complete_by_kind: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    restarts: int = 0  # replicas that were started again
    resumed: int = 0  # streams that another replica went on with, each time counted
    repeated: int = 0  # requests that were sent again before their first token
    restart_s: dict[str, float] = field(default_factory=dict)  # from the start to readiness
    request_ms: dict[str, float] = field(default_factory=dict)
    # medians of short requests, in turns
    alone_ms: float = 0.0
    front_ms: float = 0.0
    added_ms: float = 0.0  # median of the differences of neighbours
    added_range_ms: list[float] = field(default_factory=list)  # their quartiles
    # difference of the tenth percentiles: less of what else the machine did
    added_quiet_ms: float = 0.0
    front_cpu_ms: float = 0.0  # processor time of the front for such a request
    faults: list[str] = field(default_factory=list)


def kind_of(place: int) -> str:
    """The kind of a question by its place, which is its seed too."""
    return list(KINDS)[place % len(KINDS)]


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Different requests of all kinds; their prompts share beginnings."""
    noise = random.Random(seed)
    stems = ["".join(noise.choices(LETTERS, k=40)) for _ in range(4)]
    made = []
    for place in range(count):
        ending = "".join(noise.choices(LETTERS, k=noise.randint(1, 60)))
        made.append(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": noise.choice(stems) + ending}],
                "max_tokens": noise.randint(24, 96),
                "seed": place,
                "stream": True,
                **KINDS[kind_of(place)],
            }
        )
    return made


def log_lines(server: Served, event: str) -> list[dict[str, Any]]:
    """The lines of a server's log about an event."""
    lines = Path(server.log.name).read_text().splitlines()
    records = [json.loads(line) for line in lines if f'"event":"{event}"' in line]
    return [record for record in records if record["event"] == event]


async def killer(server: Served, least: float, most: float, seed: int, killed: list[int]) -> None:
    """Kill a replica every few seconds."""
    noise = random.Random(seed)
    while True:
        await asyncio.sleep(noise.uniform(least, most))
        latest = {line["replica"]: line["pid"] for line in log_lines(server, "replica ready")}
        running = [pid for pid in latest.values() if pid not in killed]
        if running:
            pid = noise.choice(running)
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)


async def attacked(
    server: Served, wanted: list[Wish], clients: int, every: tuple[float, float], seed: int
) -> tuple[list[Seen], list[int]]:
    """Run all clients while replicas are killed."""
    killed: list[int] = []
    killing = asyncio.ensure_future(killer(server, *every, seed, killed))
    try:
        return await crowd(server.port, wanted, clients, PATIENCE_S), killed
    finally:
        killing.cancel()


def judge(done: list[Seen], right: dict[str, str], report: FleetReport) -> None:
    """Compare every stream with the unbroken one."""
    kinds: Counter[str] = Counter()
    for seen in done:
        expected = right[seen.wish.key]
        if seen.trouble or seen.status != 200:
            report.faults.append(f"status {seen.status}: {seen.trouble}")
        elif not seen.complete:
            report.faults.append("a stream ended early")
        elif seen.text != expected:
            report.faults.append(f"with kills {seen.text!r}, alone {expected!r}")
        elif len(seen.heads) != 1:
            report.faults.append(f"one stream had {len(seen.heads)} ids")
        else:
            kinds[kind_of(seen.wish.question["seed"])] += 1
    report.complete = kinds.total()
    report.complete_by_kind = dict(kinds)
    report.request_ms = shares([1000 * seen.seconds for seen in done])


def added(alone: Served, front: Served, rounds: int, report: FleetReport) -> None:
    """Time of short requests, sent in turns to the single server and through the front."""
    question = {**questions(1, 5)[0], "max_tokens": 1, "temperature": 0}

    async def play() -> list[tuple[float, float]]:
        found = []
        for turn in range(rounds + 10):
            pair = [
                (await send(one.port, Wish("whole", question))).seconds for one in (alone, front)
            ]
            if turn >= 10:
                found.append((pair[0], pair[1]))
        return found

    before = front.cpu_seconds()
    pairs = asyncio.run(play())
    report.front_cpu_ms = round(1000 * (front.cpu_seconds() - before) / (rounds + 10), 2)
    report.alone_ms = round(1000 * statistics.median(pair[0] for pair in pairs), 2)
    report.front_ms = round(1000 * statistics.median(pair[1] for pair in pairs), 2)
    differences = [1000 * (pair[1] - pair[0]) for pair in pairs]
    first, middle, third = statistics.quantiles(differences, n=4)
    report.added_ms = round(middle, 2)
    report.added_range_ms = [round(first, 2), round(third, 2)]
    low = [statistics.quantiles([1000 * pair[side] for pair in pairs], n=10)[0] for side in (0, 1)]
    report.added_quiet_ms = round(low[1] - low[0], 2)


def run(given: argparse.Namespace, folder: Path) -> FleetReport:
    """The whole test."""
    report = FleetReport(given.requests, given.clients, given.replicas, given.recipe)
    model = make_tiny(folder / "tiny")
    options = ["--recipe", given.recipe, "--threads", "1"]
    asked = questions(given.known, given.seed)
    alone = Served(model, folder, options)
    answers = asyncio.run(crowd(alone.port, [Wish("whole", one) for one in asked], clients=1))
    right = {seen.wish.key: seen.text for seen in answers}
    report.faults += [
        f"alone: {seen.trouble or seen.status}" for seen in answers if not seen.complete
    ]
    os.kill(alone.process.pid, signal.SIGSTOP)  # idle threads take no time meanwhile
    front = Served(model, folder, [*options, "--replicas", str(given.replicas)])
    noise = random.Random(given.seed + 1)
    wanted = [Wish("whole", noise.choice(asked)) for _ in range(given.requests)]
    began = time.monotonic()
    done, killed = asyncio.run(attacked(front, wanted, given.clients, given.every, given.seed))
    report.seconds = round(time.monotonic() - began, 1)
    judge(done, right, report)
    report.kills = len(killed)
    report.restarts = int(front.number("sapwood_replica_restarts_total"))
    report.resumed = int(front.number("sapwood_front_resumed_total"))
    report.repeated = int(front.number("sapwood_front_repeated_total"))
    report.restart_s = shares([line["seconds"] for line in log_lines(front, "replica ready")[1:]])
    if not report.resumed:
        report.faults.append("no stream was resumed: nothing was tested")
    os.kill(alone.process.pid, signal.SIGCONT)
    if given.rounds:
        added(alone, front, given.rounds, report)
    for server in (front, alone):
        if server.end() != 0:
            report.faults.append("a server did not end well")
    return report


def main(arguments: list[str] | None = None) -> FleetReport:
    """Run everything and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--known", type=int, default=60, help="different questions")
    parser.add_argument(
        "--every", type=float, nargs=2, default=(2.0, 5.0), help="seconds between two kills"
    )
    parser.add_argument("--rounds", type=int, default=300, help="of the measurement of added time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    origin = {
        "command": provenance.command(),
        "commit": provenance.commit(),
        "machine": {
            "cpu": provenance.cpu(),
            "cores": os.cpu_count(),
            "load": provenance.load(),
        },
    }
    with tempfile.TemporaryDirectory(prefix="sapwood-fleet-") as place:
        report = run(given, Path(place))
    for name, value in asdict(report).items():
        if name != "faults":
            print(f"{name:18} {value}")
    for fault, count in Counter(report.faults).most_common(20):
        print(f"FAULT x{count}: {fault}")
    print("every stream is whole" if not report.faults else f"{len(report.faults)} faults")
    if given.json is not None:
        record = {**origin, **asdict(report)}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return report


if __name__ == "__main__":
    sys.exit(bool(main().faults))
