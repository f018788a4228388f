"""Draw time per token and tokens per second while arrivals double, from benchmarks/deadline.py.

python -m tools.deadline_curves            write docs/pictures/deadline.svg
python -m tools.deadline_curves --check    change nothing; exit with code 1 if the picture differs

Points are single runs; lines go through their means. The grey line is the deadline.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/results/deadline.json"
PICTURE = ROOT / "docs/pictures/deadline.svg"
PANEL, HEIGHT, GAP = 330, 260, 70
LEFT, TOP, BOTTOM = 56, 30, 48  # margins
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#495057}"
    "polyline{fill:none;stroke-width:1.8}"
    ".grid{stroke:#868e96;stroke-opacity:.25}"
    ".bound{stroke:#868e96;stroke-width:2;stroke-dasharray:6 4}"
)
COLOURS = {"plain": "#868e96", "auto": "#1971c2", "specserve": "#2f9e44"}

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Write the picture, or compare it; the exit code."""
    if not RECORD.is_file():
        return 0
    made = picture(json.loads(RECORD.read_text(encoding="utf-8")))
    if "--check" not in arguments:
        PICTURE.write_text(made, encoding="utf-8")
        return 0
    same = PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == made
    if not same:
        sys.stderr.write(f"{PICTURE.name} differs from {RECORD.name}; run tools.deadline_curves\n")
    return 0 if same else 1


def picture(record: dict[str, Any]) -> str:
    """Both panels as SVG."""
    rows: list[Row] = record["rows"]
    width = LEFT + 2 * PANEL + GAP + 20
    parts = [
        *panel(rows, "per_token_p99_ms", "ms per token, p99", LEFT, record["deadline_ms"]),
        *panel(rows, "tokens_per_second", "tokens per second", LEFT + PANEL + GAP, None),
    ]
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * place
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="12" y2="12" stroke="{colour}"/>')
        parts.append(f'<text x="{x + 28}" y="16">{name}</text>')
    label = "time per token and tokens per second of plain, auto and specserve by arrivals"
    size = f'width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>\n"])


def panel(rows: Sequence[Row], key: str, title: str, left: int, bound: float | None) -> list[str]:
    """One measure by phase: a line for each recipe."""
    phases = sorted({row["phase"] for row in rows})
    values = [row[key] for row in rows] + ([bound] if bound else [])
    low, high = math.log(min(values)), math.log(max(values))
    floor = HEIGHT - BOTTOM

    def y(value: float) -> float:
        return floor - float(math.log(value) - low) / (high - low) * (floor - TOP - 10)

    def x(phase: int) -> float:
        return left + 14 + phase / max(phases[-1], 1) * (PANEL - 28)

    parts = axes(rows, phases, title, left, x, y, math.exp(low), math.exp(high))
    if bound:
        at = f"{y(bound):.1f}"
        parts.append(f'<line class="bound" x1="{left}" x2="{left + PANEL}" y1="{at}" y2="{at}"/>')
    for name, colour in COLOURS.items():
        mine = [row for row in rows if row["run"] == name]
        means = [
            sum(row[key] for row in mine if row["phase"] == phase)
            / sum(row["phase"] == phase for row in mine)
            for phase in phases
        ]
        line = " ".join(
            f"{x(phase):.1f},{y(mean):.1f}" for phase, mean in zip(phases, means, strict=True)
        )
        parts.append(f'<polyline points="{line}" stroke="{colour}"/>')
        parts += [
            f'<circle cx="{x(row["phase"]):.1f}" cy="{y(row[key]):.1f}" r="2.5" fill="{colour}"/>'
            for row in mine
        ]
    return parts


def axes(
    rows: Sequence[Row],
    phases: Sequence[int],
    title: str,
    left: int,
    x: Callable[[int], float],
    y: Callable[[float], float],
    low: float,
    high: float,
) -> list[str]:
    """Lines at round values, and arrivals below."""
    parts = []
    for value in (5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= value <= high:
            at = y(value)
            parts.append(
                f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{value}</text>')
    for phase in phases:
        rate = next(row["arrivals_per_second"] for row in rows if row["phase"] == phase)
        parts.append(
            f'<text x="{x(phase):.1f}" y="{HEIGHT - 30}" text-anchor="middle">{rate:g}</text>'
        )
    middle = left + PANEL / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{title}, by arrivals per second</text>"
    )
    return parts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
