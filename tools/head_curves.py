"""Draw how kinds of heads learn, from the record of benchmarks/heads.py.

python -m tools.head_curves            write docs/pictures/head-curves.svg
python -m tools.head_curves --check    change nothing; exit with code 1 if the picture differs

Losses of different kinds are different measures. Drawn is the share of the target's tokens that are
a head's first choice for the next place, by seconds of training.
"""

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/results/heads.json"
PICTURE = ROOT / "docs/pictures/head-curves.svg"
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 16, 44  # margins
LINE = 14  # pixels between two names
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#495057}"
    "polyline{fill:none;stroke-width:1.8}"
    ".grid{stroke:#868e96;stroke-opacity:.25}"
)

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Write the picture, or compare it; the exit code."""
    if not RECORD.is_file():
        return 0
    made = picture(json.loads(RECORD.read_text(encoding="utf-8"))["rows"])
    if "--check" not in arguments:
        PICTURE.write_text(made, encoding="utf-8")
        return 0
    same = PICTURE.is_file() and PICTURE.read_text(encoding="utf-8") == made
    if not same:
        sys.stderr.write(f"{PICTURE.name} differs from {RECORD.name}; run tools.head_curves\n")
    return 0 if same else 1


def picture(rows: Sequence[Row]) -> str:
    """The curves of all kinds as SVG, each named at its end."""
    rows = sorted(rows, key=lambda row: -row["curve"][-1][2])
    longest = 60 * max(point[0] for row in rows for point in row["curve"])
    most = max(point[2] for row in rows for point in row["curve"])
    across = (WIDTH - LEFT - RIGHT) / longest
    up = (HEIGHT - TOP - BOTTOM) / most
    parts = [grid(longest, most, across, up)]
    ends = spread([HEIGHT - BOTTOM - row["curve"][-1][2] * up for row in rows])
    for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
        colour = f"hsl({360 * number / len(rows):.0f} 65% 42%)"
        spots = [
            (LEFT + 60 * minute * across, HEIGHT - BOTTOM - share * up)
            for minute, _, share in row["curve"]
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        x, y = spots[-1]
        parts.append(f'<polyline points="{line}" stroke="{colour}"/>')
        bent = f"{x:.1f},{y:.1f} {WIDTH - RIGHT + 12},{end:.1f}"
        parts.append(f'<polyline points="{bent}" stroke="{colour}" stroke-opacity=".4"/>')
        name = f"{row['kind']} {row['curve'][-1][2]:.2f}"
        parts.append(f'<text x="{WIDTH - RIGHT + 16}" y="{end + 4:.1f}">{name}</text>')
    label = "share of first choices by seconds of training, a curve for each kind of head"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>\n"])


def grid(longest: float, most: float, across: float, up: float) -> str:
    """Lines with their values, and the names of the axes."""
    floor = HEIGHT - BOTTOM
    parts = []
    for step in range(5):
        share, second = most * step / 4, longest * step / 4
        y, x = floor - share * up, LEFT + second * across
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 34}" y="{y + 4:.1f}">{share:.2f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{second:.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">seconds of training</text>'
    )
    return "\n".join(parts)


def spread(places: Sequence[float]) -> list[float]:
    """Heights of names, from the top down, moved apart where they would overlap."""
    found = [max(places[0], TOP)]
    for _, place in pairwise(places):
        found.append(max(place, found[-1] + LINE))
    over = found[-1] - (HEIGHT - BOTTOM)
    return [place - max(over, 0.0) for place in found]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
