"""The charts of the report, each from rows of its record."""

from collections.abc import Sequence
from html import escape
from typing import Any

from sapwood.bench.page.axes import (
    BOTTOM,
    HIGH,
    LEFT,
    RIGHT,
    TIMES,
    TOP,
    WIDE,
    AxisScale,
    across,
    frame,
    picture,
    upwards,
)

Rows = Sequence[dict[str, Any]]
LINE = 24.0  # pixels of a bar with its margin
GAP = 14.0  # pixels between groups
FEW = 32  # rows up to which a cost curve is always shown
MARGIN = 150.0  # pixels for names at the left of bars
STAGES = (("draft", "drafting"), ("verify", "passes and verification"), ("other", "all else"))


def mark(row: dict[str, Any], body: str, title: str) -> str:
    """Elements of one recipe, highlighted together, with a tooltip."""
    name = escape(row["recipe"], quote=True)
    return f'<g class="mark" data-who="{name}"><title>{escape(title)}</title>{body}</g>'


def dot(x: float, y: float, slot: int, size: float = 5.5) -> str:
    """A point in a recipe's colour."""
    return f'<circle class="c{slot}" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'


def tag(x: float, y: float, name: str) -> str:
    """A recipe's name beside its point, to the left near the right edge."""
    left = x > WIDE - 130
    place = f'text-anchor="end" x="{x - 9:.1f}"' if left else f'x="{x + 9:.1f}"'
    return f'<text class="tag" {place} y="{y + 4:.1f}">{escape(shortened(name))}</text>'


def shortened(name: str, most: int = 20) -> str:
    """A name of at most `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


# ------------------------------------------------------------------------------ by category
def by_category(rows: Rows, slots: dict[str, int]) -> str:
    """Speedup of each recipe in each category, with its interval; the line is plain decoding."""
    shown = [row for row in rows if row["speedup"] is not None and row["recipe"] != "plain"]
    groups = list(dict.fromkeys(row["category"] for row in shown))
    ends = [
        row[key]
        for row in shown
        for key in ("speedup_low", "speedup_high", "speedup")
        if row[key] is not None
    ]
    x = AxisScale(0.0, max([1.2, *ends]) * 1.05, MARGIN, WIDE - RIGHT)
    parts = []
    y = TOP
    for category in groups:
        mine = [row for row in shown if row["category"] == category]
        middle = y + LINE * len(mine) / 2
        place = f'text-anchor="end" x="{MARGIN - 14}" y="{middle + 4}"'
        parts.append(f'<text class="name" {place}>{escape(category)}</text>')
        for row in mine:
            parts.append(whisker(row, x, y + LINE / 2, slots[row["recipe"]]))
            y += LINE
        y += GAP
        parts.append(
            f'<line class="rule" x1="8" x2="{WIDE - RIGHT}" y1="{y - GAP / 2}" y2="{y - GAP / 2}"/>'
        )
    high = y + BOTTOM - GAP
    grid = "".join(
        vertical(x, value, high, "one" if value == 1 else "grid")
        for value in sorted({*x.ticks(), 1.0})
    )
    name = axis_name("times plain decoding", high)
    title = f"speedup over plain decoding of {len(slots)} recipes in {len(groups)} categories"
    return picture(grid + "".join(parts) + name, title, "categories", high)


def axis_name(name: str, high: float) -> str:
    """The name of the horizontal axis."""
    place = f'text-anchor="middle" x="{WIDE / 2}" y="{high - 8}"'
    return f'<text class="name" {place}>{name}</text>'


def vertical(x: AxisScale, value: float, high: float, kind: str, unit: str = TIMES) -> str:
    """A vertical grid line with its label."""
    at = x.at(value)
    line = f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP}" y2="{high - BOTTOM}"/>'
    place = f'text-anchor="middle" x="{at}" y="{high - BOTTOM + 17}"'
    return f'{line}<text class="tick" {place}>{value:g}{unit}</text>'


def whisker(row: dict[str, Any], x: AxisScale, y: float, slot: int) -> str:
    """A point on its interval."""
    low, high = row["speedup_low"], row["speedup_high"]
    ends = row["speedup"] if low is None else low, row["speedup"] if high is None else high
    body = (
        f'<line class="s{slot} thick" x1="{x.at(ends[0])}" x2="{x.at(ends[1])}" y1="{y}" y2="{y}"/>'
    )
    title = (
        f"{row['recipe']}, {row['category']}: {row['speedup']:.2f}{TIMES} "
        f"({ends[0]:.2f} to {ends[1]:.2f})"
    )
    return mark(row, body + dot(x.at(row["speedup"]), y, slot), title)


# --------------------------------------------------------------------------------- per pass
def per_pass(rows: Rows, slots: dict[str, int]) -> str:
    """Tokens per pass against nodes per pass, with intervals."""
    shown = [row for row in rows if row["tokens_per_pass"] is not None]
    x = across([row["nodes_per_pass"] for row in shown])
    y = upwards([0.0, *(row["tokens_per_pass_high"] or row["tokens_per_pass"] for row in shown)])
    parts = []
    for row in shown:
        at = x.at(row["nodes_per_pass"])
        up = y.at(row["tokens_per_pass"])
        low, high = row["tokens_per_pass_low"], row["tokens_per_pass_high"]
        slot = slots[row["recipe"]]
        bar = (
            f'<line class="s{slot}" x1="{at}" x2="{at}" y1="{y.at(low)}" y2="{y.at(high)}"/>'
            if low
            else ""
        )
        title = (
            f"{row['recipe']}: {row['tokens_per_pass']:.2f} tokens and "
            f"{row['nodes_per_pass']:.1f} nodes per pass"
        )
        parts.append(mark(row, bar + dot(at, up, slot) + tag(at, up, row["recipe"]), title))
    names = ("nodes checked per pass", "tokens per pass")
    return picture(frame(x, y, names) + "".join(parts), f"{names[1]} against {names[0]}", "passes")


# ------------------------------------------------------------------------------------- cost
def cost(curve: dict[str, Any], rows: Rows, slots: dict[str, int]) -> str:
    """Milliseconds of a pass by rows, one line per context, with the mean pass of each recipe."""
    points = [(row, *working_point(row)) for row in rows if row["passes"]]
    most = max([FEW, *(2 * at for _, at, _ in points)])  # right end of the chart
    sizes = [size for size in curve["rows"] if size <= most] or curve["rows"][:1]
    x = across([1.0, float(max(sizes[-1], most / 2))], doubling=True)
    tables = [[1000 * cell for cell in line[: len(sizes)]] for line in curve["seconds"]]
    y = upwards(
        [0.0, *(cell for line in tables for cell in line), *(spent for _, _, spent in points)]
    )
    parts = []
    for context, line in zip(curve["contexts"], tables, strict=True):
        course = " ".join(
            f"{x.at(size)},{y.at(cell)}" for size, cell in zip(sizes, line, strict=True)
        )
        last = x.at(sizes[-1]), y.at(line[-1]) - 6 if line is tables[-1] else y.at(line[-1]) + 16
        parts.append(f'<polyline class="curve" points="{course}"/>')
        place = f'text-anchor="end" x="{last[0]}" y="{last[1]:.1f}"'
        parts.append(f'<text class="tick" {place}>context {context}</text>')
    for row, at, spent in points:
        title = f"{row['recipe']}: {at:.1f} rows and {spent:.1f} ms per pass"
        where = x.at(at), y.at(spent)
        point = dot(*where, slots[row["recipe"]]) + tag(*where, row["recipe"])
        parts.append(mark(row, point, title))
    names = ("rows of a pass, root included", "milliseconds")
    return picture(frame(x, y, names) + "".join(parts), "cost of a pass by its rows", "cost")


def working_point(row: dict[str, Any]) -> tuple[float, float]:
    """Mean rows of a pass and its mean milliseconds, verification included."""
    return 1 + row["nodes_per_pass"], 1000 * row["verify_share"] * row["seconds"] / row["passes"]


# ------------------------------------------------------------------------------ calibration
def calibration(rows: Rows, slots: dict[str, int]) -> str:
    """Acceptance rate by estimated probability; calibrated estimates lie on the diagonal."""
    x, y = across([0.0, 1.0]), upwards([0.0, 1.0])
    parts = [f'<line class="one" x1="{x.at(0)}" y1="{y.at(0)}" x2="{x.at(1)}" y2="{y.at(1)}"/>']
    for row in rows:
        bins = row["reliability"] or []
        slot = slots[row["recipe"]]
        most = max([1, *(it["nodes"] for it in bins)])
        places = [(x.at(it["predicted"]), y.at(it["accepted"]), it) for it in bins]
        course = " ".join(f"{at},{up}" for at, up, _ in places)
        dots = "".join(
            dot(at, up, slot, 2 + 5 * (it["nodes"] / most) ** 0.5) for at, up, it in places
        )
        if bins:
            count = sum(it["nodes"] for it in bins)
            title = f"{row['recipe']}: mean gap {row['ece']:.3f} over {count} nodes"
            line = f'<polyline class="s{slot} line" points="{course}"/>'
            parts.append(mark(row, line + dots, title))
    names = ("probability estimated by the policy", "share accepted")
    return picture(frame(x, y, names) + "".join(parts), "calibration curves", "calibration")


# ------------------------------------------------------------------------------- time split
def time_split(rows: Rows) -> str:
    """Milliseconds of one token by stage."""
    shown = [row for row in rows if row["draft_share"] is not None]
    per_token = [1000 * row["seconds"] / row["tokens"] for row in shown]
    high = TOP + LINE * len(shown) + BOTTOM
    x = AxisScale(0.0, max([*per_token, 1e-9]) * 1.05, MARGIN, WIDE - RIGHT)
    parts = [vertical(x, value, high, "grid", unit="") for value in x.ticks()]
    for place, (row, whole) in enumerate(zip(shown, per_token, strict=True)):
        top = TOP + LINE * place + 4
        left = 0.0
        bars = []
        for stage, _ in STAGES:
            wide = row[f"{stage}_share"] * whole
            edge = x.at(left)
            size = max(x.at(left + wide) - x.at(left), 0.0)
            bars.append(
                f'<rect class="{stage}" x="{edge}" y="{top}" width="{size:.1f}" height="16"/>'
            )
            left += wide
        label = escape(shortened(row["recipe"]))
        name = (
            f'<text class="tag" text-anchor="end" x="{MARGIN - 10}" y="{top + 12}">{label}</text>'
        )
        shares = ", ".join(f"{stage} {row[f'{key}_share']:.0%}" for key, stage in STAGES)
        title = f"{row['recipe']}: {whole:.2f} ms per token; {shares}"
        parts.append(mark(row, name + "".join(bars), title))
    unit = axis_name("milliseconds per token", high)
    return picture("".join(parts) + unit, "milliseconds per token by stage", "split", high)


# ------------------------------------------------------------------------------------ sweep
def sweep(rows: Rows, key: str, slots: dict[str, int]) -> str:
    """Speedup over the values of one setting, the others at their first."""
    shown = [row for row in rows if row["speedup"] is not None]
    x = across(
        [float(row[key]) for row in shown], zero=key == "temperature", doubling=key != "temperature"
    )
    y = upwards([0.0, *(row["speedup_high"] or row["speedup"] for row in shown)])
    parts = [f'<line class="one" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y.at(1)}" y2="{y.at(1)}"/>']
    for name in dict.fromkeys(row["recipe"] for row in shown):
        mine = sorted(
            (row for row in shown if row["recipe"] == name), key=lambda row: float(row[key])
        )
        places = [(x.at(float(row[key])), y.at(row["speedup"])) for row in mine]
        course = " ".join(f"{at},{up}" for at, up in places)
        line = f'<polyline class="s{slots[name]} line" points="{course}"/>'
        dots = "".join(dot(at, up, slots[name], 4) for at, up in places)
        title = f"{name}: " + ", ".join(
            f"{row['speedup']:.2f}{TIMES} at {row[key]:g}" for row in mine
        )
        parts.append(mark(mine[0], line + dots, title))
    return picture(
        frame(x, y, (key, "times plain decoding")) + "".join(parts),
        f"speedup by {key}",
        "sweep",
        HIGH,
    )
