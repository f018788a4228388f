"""Simulate fleets of replicas from measured curves, for docs/fleet-simulator.md.

python -m tools.fleet_simulator            write the page and its picture
python -m tools.fleet_simulator --check    change nothing; exit with code 1 if one differs

The curves are those of benchmarks/results; `tools.fleet_model` says how a replica is modelled. All
random numbers are seeded: the page follows from the records and this file alone.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tools.fleet_model import (
    FleetRequest,
    Router,
    SimulatedReplica,
    SpeedCurve,
    arrivals,
    by_session,
    in_turn,
    run_closed,
    run_open,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = "docs/fleet-simulator.md"
PICTURE = "docs/pictures/fleet-simulator.svg"
GPU, CPU, PAIR, TEXTS = "gpu-serving.json", "cpu-serving.json", "cpu-pair.json", "gpu-h200.json"
LIMIT = 128  # requests at a time in a replica: the largest load that was measured
SEED = 0
PATIENCE = 1.0  # seconds to the first token within which 99 % of the requests must be served
RATES = (10, 100, 1_000, 10_000)  # requests per second
SECONDS = {10: 30.0, 100: 20.0, 1_000: 10.0, 10_000: 5.0}  # simulated, by rate
FULL = 0.85  # of the most tokens per second that a replica is planned for
MORE = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)  # times the replicas that tokens alone need
TURNS = 8  # requests of a conversation
SHARED = 0.8  # part of a prompt that is the conversation so far
ROOM = 512  # conversations whose prefix a replica keeps
TRIPS = (0, 1, 2, 5, 10, 20, 50)  # milliseconds to a drafter and back
REST = 0.95  # of plain decoding that remains where drafts come too late; tests/remote holds it
SWEEPS, HALVINGS = 3, 12  # of the fit of prefill rates
Record = dict[str, Any]


class Outcome(NamedTuple):
    """A simulated run: tokens per second, and milliseconds to the first token."""

    rate: float
    first: float  # median
    late: float  # 99th percentile


@cache
def read(name: str) -> Record:
    """A record."""
    found: Record = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def lengths() -> list[int]:
    """Tokens of an output in each category of prompts, at most 128."""
    rows = read(TEXTS)["decoding"]["greedy"]
    return [
        round(row["tokens"] / row["prompts"])
        for row in rows
        if row["recipe"] == "plain" and row["category"] != "all"
    ]


def outcome(requests: Sequence[FleetRequest]) -> Outcome:
    """Throughput and waits of requests that are done."""
    waits = np.array([one.first - one.arrived for one in requests])
    span = max(one.done for one in requests) - requests[0].arrived
    tokens = sum(one.length for one in requests)
    return Outcome(
        tokens / span, 1e3 * float(np.median(waits)), 1e3 * float(np.quantile(waits, 0.99))
    )


# ------------------------------------------------------------------------------- curves of records
def gpu_rows() -> list[Record]:
    """Rows of plain decoding on a GPU, by level."""
    return [row for row in read(GPU)["rows"] if row["recipe"] == "plain"]


def like_measured(curve: SpeedCurve, row: Record) -> Outcome:
    """The benchmark of one level, simulated."""
    texts = lengths()
    answers = [texts[number % len(texts)] for number in range(row["answers"])]
    return outcome(run_closed(SimulatedReplica(curve, LIMIT), answers, row["level"]))


def gpu_curve(rows: Sequence[Record]) -> SpeedCurve:
    """Steps as measured, and the prefill rates that give the measured times to a first token."""
    batch = tuple(row["trees_per_pass"] for row in rows)
    seconds = tuple(row["step_ms"] / 1e3 for row in rows)
    prompts = [200.0] * len(rows)
    curve = SpeedCurve(batch, seconds, (1.0,) * len(rows), tuple(prompts))
    for place, row in [*enumerate(rows)] * SWEEPS:
        low, high = 20.0, 2000.0
        for _ in range(HALVINGS):
            prompts[place] = math.sqrt(low * high)
            curve = replace(curve, prompts=tuple(prompts))
            late = like_measured(curve, row).first > row["first_token_ms"]
            low, high = (prompts[place], high) if late else (low, prompts[place])
    return curve


def cpu_rows(run: str) -> list[Record]:
    """Rows of a recipe on a CPU, by level."""
    return [row for row in read(CPU)["rows"] if row["run"] == run]


def cpu_curve(rows: Sequence[Record]) -> SpeedCurve:
    """Steps of plain decoding, prefill included: the record has no other times."""
    return SpeedCurve(
        tuple(row["trees_per_pass"] for row in rows),
        tuple(row["seconds"] * row["trees_per_pass"] / row["tokens"] for row in rows),
        (1.0,) * len(rows),
        (1e6,) * len(rows),
    )


def cpu_measured(curve: SpeedCurve, row: Record) -> Outcome:
    """The benchmark of one level, simulated."""
    count = row["same_text_as_first"]
    answers = [round(row["tokens"] / count)] * count
    return outcome(run_closed(SimulatedReplica(curve, LIMIT), answers, row["level"]))


# ---------------------------------------------------------------------------------------- fleets
def fleet(curve: SpeedCurve, count: int, room: int = 0) -> list[SimulatedReplica]:
    """So many equal replicas."""
    return [SimulatedReplica(curve, LIMIT, room, SHARED) for _ in range(count)]


def served(
    curve: SpeedCurve, count: int, rate: int, route: Router, turns: int = 0
) -> tuple[Outcome, float]:
    """Requests at this rate on so many replicas; and the share whose prefix was cached."""
    replicas = fleet(curve, count, ROOM if turns else 0)
    requests = arrivals(rate, SECONDS[rate], lengths(), SEED, turns)
    run_open(replicas, requests, route)
    return outcome(requests), sum(one.hits for one in replicas) / len(requests)


def needed(curve: SpeedCurve, rate: int) -> tuple[int, Outcome]:
    """The fewest replicas tried whose 99th percentile is within `PATIENCE`, and its outcome."""
    each = FULL * LIMIT / curve.step(LIMIT) / float(np.mean(lengths()))  # requests per second
    for more in MORE:
        count = math.ceil(more * rate / each)
        found, _ = served(curve, count, rate, in_turn())
        if found.late <= 1e3 * PATIENCE:
            break
    return count, found


# ---------------------------------------------------------------------------------------- tables
def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def error(found: float, wanted: float) -> str:
    """Relative difference in percent."""
    return f"{100 * (found / wanted - 1):+.0f} %"


def measured_table() -> str:
    """Simulated beside measured tokens per second."""
    lines = []
    rows = gpu_rows()
    curve = gpu_curve(rows)
    for place, row in enumerate(rows):
        found, wanted = like_measured(curve, row).rate, row["tokens_per_second"]
        inner = 0 < place < len(rows) - 1
        apart = error(like_measured(without(curve, place), row).rate, wanted) if inner else ""
        lines.append(line("H200, float16", row["level"], wanted, found, apart))
    rows = cpu_rows("plain")
    curve = cpu_curve(rows)
    for place, row in enumerate(rows):
        found, wanted = cpu_measured(curve, row).rate, row["tokens_per_second"]
        inner = 0 < place < len(rows) - 1
        apart = error(cpu_measured(without(curve, place), row).rate, wanted) if inner else ""
        lines.append(line("2 CPU cores, int8", row["level"], wanted, found, apart))
    heads = ["machine", "requests at a time", "measured tokens / s", "simulated", "error"]
    return table([*heads, "error without this point"], lines)


def line(machine: str, level: int, wanted: float, found: float, apart: str) -> list[str]:
    """A row of the table of measured and simulated rates."""
    return [machine, f"{level}", f"{wanted:,.0f}", f"{found:,.0f}", error(found, wanted), apart]


def without(curve: SpeedCurve, place: int) -> SpeedCurve:
    """The curve without one of its points."""

    def cut(values: tuple[float, ...]) -> tuple[float, ...]:
        return values[:place] + values[place + 1 :]

    return SpeedCurve(cut(curve.batch), cut(curve.seconds), cut(curve.tokens), cut(curve.prompts))


def rates_table(curve: SpeedCurve) -> str:
    """Replicas that arrival rates need."""
    lines = []
    for rate in RATES:
        count, found = needed(curve, rate)
        lines.append(
            [f"{rate:,}", f"{count:,}", f"{rate / count:.0f}", f"{found.rate:,.0f}",
             f"{found.first:.0f}", f"{found.late:.0f}"]
        )  # fmt: skip
    return table(
        [
            "requests / s",
            "replicas",
            "requests / s each",
            "tokens / s",
            "first token, ms",
            "99 %, ms",
        ],
        lines,
    )


def affinity_counts(curve: SpeedCurve) -> list[int]:
    """Numbers of replicas around what 1,000 requests per second need."""
    count, _ = needed(curve, 1_000)
    return [max(1, round(count * part)) for part in (0.8, 0.9, 1.0, 1.2, 1.5)]


def affinity_points(
    curve: SpeedCurve,
) -> list[tuple[int, tuple[Outcome, float], tuple[Outcome, float]]]:
    """For each number of replicas: requests in turn, and by session."""
    return [
        (
            count,
            served(curve, count, 1_000, in_turn(), TURNS),
            served(curve, count, 1_000, by_session, TURNS),
        )
        for count in affinity_counts(curve)
    ]


def affinity_table(curve: SpeedCurve) -> str:
    """Waits with and without affinity."""
    lines = []
    for count, (turn, seen), (own, kept) in affinity_points(curve):
        lines.append(
            [f"{count}", f"{100 * seen:.0f} %", f"{turn.first:.0f}", f"{turn.late:.0f}",
             f"{100 * kept:.0f} %", f"{own.first:.0f}", f"{own.late:.0f}"]
        )  # fmt: skip
    return table(
        ["replicas", "in turn: cached", "first token, ms", "99 %, ms",
         "affinity: cached", "first token, ms", "99 %, ms"],
        lines,
    )  # fmt: skip


def remote_table() -> str:
    """Tokens per second of one request whose drafter is elsewhere."""
    rows = {row["recipe"]: row for row in read(PAIR)["rows"] if row["category"] == "all"}
    plain = rows["plain"]["tokens_per_second"]
    lines = []
    for trip in TRIPS:
        cells = [f"{trip}" if trip else "local"]
        for recipe in ("auto, drafter alone", "chain of 4"):
            found = rows[recipe]
            seconds = found["tokens_per_pass"] / found["tokens_per_second"] + trip / 1e3
            rate = found["tokens_per_pass"] / seconds
            cells += [f"{rate:.1f}", f"{max(rate / plain, REST):.2f}"]
        lines.append(cells)
    return table(
        ["round trip, ms", "`auto`, drafter alone: tokens / s", "against plain, with rests",
         "chain of 4: tokens / s", "against plain, with rests"],
        lines,
    )  # fmt: skip


# --------------------------------------------------------------------------------------- the page
PAGE_TEXT = """\
<!-- written by tools/fleet_simulator.py from benchmarks/results: measure again, then run it -->

# Fleets, simulated

How many replicas a load needs, what affinity is worth, and how far away a drafter may be. No such
fleet was measured: these are simulations of made-up machines, each of which is as fast as one that
was. `python -m tools.fleet_simulator` makes the page; random numbers are seeded, so it always makes
the same one.

## The model

A replica decodes all its requests in common steps. A step takes the seconds that were measured for
that many requests (a line between measured points, and beyond the last), a request gains one token
in it, and prompts are prefilled at a rate that depends on the load. Routing, queues, at most
{limit} requests at a time and the prefix cache are as in [replicas](replicas.md). Not in the model:
the network, memory that runs out, replicas that die, and prompts of unequal length. Outputs have
the mean lengths of the six categories of Spec-Bench prompts, {shortest} to {longest} tokens.

The curve of a GPU is plain decoding of SmolLM2-135M on an H200
(`benchmarks/results/{gpu}`), that of a CPU the same model in int8 on two cores
(`benchmarks/results/{cpu}`). Prefill rates on the GPU are fitted so that the median time
to a first token is the measured one; tokens per second are not fitted. Beyond
{beyond:.0f} requests in a step the curve of the GPU is a straight line on, not a measurement.

## Simulated beside measured

The benchmark itself, simulated: a fixed number of requests at a time on one replica. The last
column leaves the point out that is simulated, so that neighbours have to stand for it.

{measured}
The curve bends between measured points, so a load between them is less certain than these errors
say: the last column shows by how much.

## Replicas for a load

Requests arrive at random times (Poisson), replicas take them in turn, and 99 % must have their
first token within {patience:.0f} s, with replicas that are planned for {full:.0f} % of their
highest throughput. The number is the smallest of those tried, in steps of a tenth and more.

{rates}
The load per replica stays about the same: replicas share nothing, so a larger fleet only evens out
chance. At {top:,} requests per second the front would have to be more than one process; it is not
modelled.

## What affinity is worth

1,000 requests per second, conversations of {turns} requests on average, whose prompts repeat
{shared:.0f} % of what was read before; a replica keeps the prefixes of {room} conversations. In
turn, a conversation finds its prefix only by chance; with affinity it returns to the replica that
has it, unless that has more than 1.25 times its share of the load. The conversation's length, the
repeated share and the room are assumptions, not measurements.

{affinity}
Affinity saves prefill and costs balance: the first shows in the median, the second in the 99th
percentile.

![Milliseconds to the first token by number of replicas](pictures/fleet-simulator.svg)

## A drafter elsewhere

One request to TinyLlama-1.1B in int8 on two cores, drafted by a model of 15 million weights
(`benchmarks/results/{pair}`, where plain decoding makes {plain:.1f} tokens per second). A round
takes the measured seconds and the round trip; the drafter is as fast elsewhere as here. A
controller that rests keeps {rest:.2f} of plain decoding where drafts come too late
([remote](remote.md)).

{remote}
There is no measured record of drafting over a network, so these rows have nothing beside them. On
an H200 a step of this small model takes {step:.1f} ms: there no network is near enough, and a
drafter belongs on the device.
"""


def page(curve: SpeedCurve) -> str:
    """The whole page."""
    texts = lengths()
    rows = read(PAIR)["rows"]
    [plain] = [row for row in rows if (row["recipe"], row["category"]) == ("plain", "all")]
    return PAGE_TEXT.format(
        limit=LIMIT, shortest=min(texts), longest=max(texts), gpu=GPU, cpu=CPU, pair=PAIR,
        measured=measured_table(), patience=PATIENCE, rates=rates_table(curve), top=RATES[-1],
        turns=TURNS, shared=100 * SHARED, room=ROOM, affinity=affinity_table(curve),
        plain=plain["tokens_per_second"], rest=REST, remote=remote_table(),
        step=1e3 * curve.step(1), full=100 * FULL, beyond=curve.batch[-1],
    )  # fmt: skip


def picture(curve: SpeedCurve) -> str:
    """The 99th percentile of the time to a first token, by number of replicas, as SVG."""
    points = affinity_points(curve)
    counts = [count for count, _, _ in points]
    series = {
        "in turn": ("#b45309", [turn[0].late for _, turn, _ in points]),
        "affinity": ("#0f766e", [own[0].late for _, _, own in points]),
    }
    top = max(max(values) for _, values in series.values())
    left, right, upper, lower = 60, 560, 20, 230

    def place(count: int, value: float) -> str:
        x = left + (right - left) * (count - counts[0]) / max(1, counts[-1] - counts[0])
        return f"{x:.1f},{lower - (lower - upper) * value / top:.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 280" font-family="sans-serif" '
        'font-size="12" fill="#64748b">',
        f'<path d="M{left} {upper}V{lower}H{right}" fill="none" stroke="#94a3b8"/>',
        f'<text x="{left - 6}" y="{upper + 4}" text-anchor="end">{top:,.0f} ms</text>',
        f'<text x="{left - 6}" y="{lower + 4}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{lower + 34}" text-anchor="end">replicas</text>',
    ]
    for count in counts:
        x = place(count, 0).partition(",")[0]
        parts.append(f'<text x="{x}" y="{lower + 18}" text-anchor="middle">{count}</text>')
    for row, (name, (colour, values)) in enumerate(series.items()):
        path = " ".join(place(count, value) for count, value in zip(counts, values, strict=True))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{right}" y="{upper + 16 * row}" text-anchor="end" '
            f'fill="{colour}">{name}, 99 %</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str]) -> int:
    """Write the page and its picture, or compare them; the exit code."""
    curve = gpu_curve(gpu_rows())
    stale = []
    for name, text in ((PAGE, page(curve)), (PICTURE, picture(curve))):
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if "--check" not in arguments:
        return 0
    for name in stale:
        sys.stderr.write(
            f"{name} differs from {RESULTS.name}; run python -m tools.fleet_simulator\n"
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
