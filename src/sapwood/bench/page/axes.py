"""A chart's frame: scales, ticks, axes. Pixels of a fixed width; the page scales them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# pixels of a chart
WIDE = 640.0
HIGH = 360.0
# pixels around the plot
LEFT = 56.0
RIGHT = 16.0
TOP = 14.0
BOTTOM = 46.0
TIMES = "\u00d7"  # the sign after a factor
TICKS = 6  # approximate number on an axis


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Linear or logarithmic scale from values to pixels."""

    low: float
    high: float
    start: float  # pixels at `low`
    end: float
    doubling: bool = False  # logarithmic, base 2

    def at(self, value: float) -> float:
        """Pixel of a value."""
        low, high, value = (
            math.log2(it) if self.doubling else it for it in (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.doubling:
            first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            return [float(2**power) for power in range(first, last + 1)]
        step = round_step((self.high - self.low) / TICKS)
        return [
            step * place
            for place in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)
        ]


def round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    if rough <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(rough))
    return float(next(power * size for size in (1, 2, 5, 10) if power * size >= rough - 1e-12))


def across(values: Sequence[float], *, zero: bool = True, doubling: bool = False) -> AxisScale:
    """A horizontal scale for these values."""
    low, high = bounds(values, zero=zero, doubling=doubling)
    return AxisScale(low, high, LEFT, WIDE - RIGHT, doubling)


def upwards(values: Sequence[float], high: float = HIGH, *, zero: bool = True) -> AxisScale:
    """A vertical scale for these values in a chart of this height."""
    low, top = bounds(values, zero=zero)
    return AxisScale(low, top, high - BOTTOM, TOP)


def bounds(values: Sequence[float], *, zero: bool, doubling: bool = False) -> tuple[float, float]:
    """Range of an axis: the values with a margin, from zero if wanted."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if doubling:
        return low, max(high, 2 * low)
    low = min(low, 0.0) if zero else low
    room = (high - low) * 0.06 or 0.5
    return (low if zero and low == 0 else low - room), high + room


def short(value: float) -> str:
    """A number as a tick label."""
    return f"{value:g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.0e}"


def frame(x: AxisScale, y: AxisScale, names: tuple[str, str], high: float = HIGH) -> str:
    """Grid, ticks and names of both axes."""
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{at}" y2="{at}"/>')
        label = f'text-anchor="end" x="{LEFT - 8}" y="{at + 4}"'
        parts.append(f'<text class="tick" {label}>{short(value)}</text>')
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{high - BOTTOM}"/>')
        label = f'text-anchor="middle" x="{at}" y="{high - BOTTOM + 17}"'
        parts.append(f'<text class="tick" {label}>{short(value)}</text>')
    middle = (TOP + high - BOTTOM) / 2
    below = f'text-anchor="middle" x="{WIDE / 2}" y="{high - 8}"'
    parts.append(f'<text class="name" {below}>{escape(names[0])}</text>')
    turned = f'transform="translate(14 {middle}) rotate(-90)"'
    parts.append(f'<text class="name" text-anchor="middle" {turned}>{escape(names[1])}</text>')
    return "".join(parts)


def picture(body: str, label: str, kind: str, high: float = HIGH) -> str:
    """A whole chart; `label` is for screen readers."""
    size = f'viewBox="0 0 {WIDE:g} {high:g}"'
    aria = f'role="img" aria-label="{escape(label, quote=True)}"'
    return f'<svg class="chart {kind}" {size} {aria}>{body}</svg>'
