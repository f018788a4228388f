"""Seconds of a target pass, by rows and by context: measured, and refined while running.

A row is one node of a tree, root included, so plain decoding is one row. A pass may hold the trees
of several requests: then its rows are those of all, and every tree after the first costs a little
of its own. Longer texts than were measured cost more in proportion to their length, and more rows
more than one: attention reads all keys for each. Once such a text was decoded, the table has a line
of its own for it. The table is stored per model, backend, device, dtype and thread count.
"""

import bisect
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray

DRIFT = 0.2  # rate at which the whole table follows the machine's present speed
SHAPE = 0.03  # rate at which a single cell follows its own observations
OUTLIER = 2.0  # a pass slower or faster than this factor counts as this factor
LONGER = 2  # a text so many times as long as the longest context of the table gets its own line
FIRST = 4  # passes of a size from which such a line is made; later ones refine it
ROOTS = 3  # such passes of one row before nodes are priced


@dataclass
class NewLine:
    """Seconds at a context that was not measured: predicted, and replaced as passes are seen."""

    predicted: FloatArray  # [rows]
    seen: dict[int, int] = field(default_factory=dict)  # column -> passes
    ratios: dict[int, float] = field(default_factory=dict)  # column -> seen over predicted seconds

    def add(self, column: int, ratio: float) -> None:
        """Count a pass of this column's size."""
        self.seen[column] = self.seen.get(column, 0) + 1
        # the quickest counts: the first passes over a text find nothing in the caches
        self.ratios[column] = min(self.ratios.get(column, ratio), ratio)

    def cells(self) -> list[float]:
        """Seconds by rows: a size that was not seen is off by as much as its neighbours."""
        known = sorted(self.ratios)
        ratios = np.interp(
            np.arange(len(self.predicted)), known, [self.ratios[column] for column in known]
        )
        # more rows cannot cost less
        found: list[float] = np.maximum.accumulate(self.predicted * ratios).tolist()
        return found


@dataclass
class CostModel:
    """Measured seconds of a pass on a grid of contexts and rows.

    Linear between grid points and beyond the longest context; beyond the largest number of rows in
    proportion to it.
    """

    rows: list[int]  # ascending, starts at 1
    contexts: list[int]  # ascending
    table: list[list[float]]  # [contexts][rows] seconds
    drift: float = 1.0  # present speed of the machine against the table
    # seconds that each tree after the first adds to a pass, besides those of its rows
    tree: float = 0.0
    # by context; see `_line`
    _lines: dict[int, FloatArray] = field(default_factory=dict, repr=False, compare=False)
    # cached; see `_growth_by_context`
    _growth: tuple[float, float] | None = field(default=None, repr=False, compare=False)
    # lines of this process that were not measured, by place in the table
    _new: dict[int, NewLine] = field(default_factory=dict, repr=False, compare=False)
    # arguments and result of the last call of `plain`
    _plain: tuple[tuple[float, ...], float] = field(default=((), 0.0), repr=False, compare=False)
    _many: dict[int, tuple[FloatArray, FloatArray]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def seconds(self, rows: int, context: int, trees: int = 1) -> float:
        """Predicted seconds of a pass over this many rows of so many trees."""
        below, above, weight = self._between(context)
        low = self._cell(below, rows)
        found = low + weight * (self._cell(above, rows) - low if weight else 0.0)
        longer = context - self.contexts[-1]
        if longer > 0:
            fixed, each = self._growth_by_context()
            found += longer * (fixed + each * rows)
        return (found + (trees - 1) * self.tree) * self.drift

    def line(self, most: int, context: int) -> FloatArray:
        """Seconds of passes over 1, 2, ... most rows at this context."""
        below, above, weight = self._between(context)
        low = self._line(below, most)
        found: FloatArray = low + weight * (self._line(above, most) - low) if weight else low
        longer = context - self.contexts[-1]
        if longer > 0:
            fixed, each = self._growth_by_context()
            found = found + longer * (fixed + each * self._numbers(most)[0])
        return found * self.drift

    def plain(self, rows: int, context: int, seconds: float, trees: int = 1) -> float:
        """Seconds of a pass over the roots alone, given that this one took `seconds`.

        Only the shape of the table is used, so a machine that is busy just now does not count.
        """
        if rows == trees:
            return seconds
        asked = rows, context, seconds, trees
        if asked != self._plain[0]:  # requests that share a pass call with the same
            whole = self.seconds(rows, context, trees)
            self._plain = asked, seconds * self.seconds(trees, context, trees) / whole
        return self._plain[1]

    def observe(self, rows: int, context: int, seconds: float, trees: int = 1) -> None:
        """Refine by an observed pass: the machine's speed quickly, the table's shape slowly."""
        if self._is_longer(context):
            self._add_context(context)
        factor = seconds / self.seconds(rows, context, trees)
        factor = min(max(factor, 1 / OUTLIER), OUTLIER)
        column = nearest(self.rows, rows)
        below, above, weight = self._between(context)
        place = above if weight > 0.5 else below
        self._lines.pop(place, None)
        self._growth = None
        new = self._new.get(place)
        if new is not None and trees == 1 and new.seen.get(column, 0) < FIRST:
            # the prediction is wrong rather than the machine's speed
            new.add(column, factor * self.table[place][column] / float(new.predicted[column]))
            self.table[place] = new.cells()
            return
        self.drift *= 1 + DRIFT * (factor - 1)
        self.table[place][column] *= 1 + SHAPE * (factor - 1)
        if trees > 1:
            self.tree *= 1 + SHAPE * (factor - 1)

    def lacks_root(self, context: int) -> bool:
        """True when few passes of one row were seen at a context that was not measured."""
        if self._is_longer(context):
            return True
        below, above, weight = self._between(context)
        new = self._new.get(above if weight > 0.5 else below)
        return new is not None and new.seen.get(0, 0) < ROOTS

    def _is_longer(self, context: int) -> bool:
        """True when a context is to get a line of its own."""
        return len(self.contexts) > 1 and context >= LONGER * max(self.contexts[-1], 1)

    def _add_context(self, context: int) -> None:
        """Add a line for a longer context, as predicted."""
        cells = [self.seconds(rows, context) / self.drift for rows in self.rows]
        self._new[len(self.table)] = NewLine(np.array(cells))
        self.contexts.append(context)
        self.table.append(cells)

    def _growth_by_context(self) -> tuple[float, float]:
        """Seconds that each further token of context adds to a pass, and to each of its rows.

        A line through the differences of the first and the last measured context, in which small
        passes count most; both numbers are at least 0.
        """
        if self._growth is None:
            span = self.contexts[-1] - self.contexts[0]
            self._growth = rising_line(self.rows, self.table[0], self.table[-1], span)
        return self._growth

    def _cell(self, place: int, rows: int) -> float:
        """Seconds of so many rows at one of the measured contexts, before drift."""
        known = self.rows
        cells = self.table[place]
        above = bisect.bisect_left(known, rows)
        if above == len(known):  # beyond the table the cost is proportional to the rows
            return cells[-1] * rows / known[-1]
        if above == 0:
            return cells[0]
        low, high = known[above - 1], known[above]
        return cells[above - 1] + (rows - low) / (high - low) * (cells[above] - cells[above - 1])

    def _line(self, place: int, most: int) -> FloatArray:
        """`_cell` for 1, 2, ... most rows; cached, as every round needs it."""
        kept = self._lines.get(place)
        if kept is None or len(kept) < most:
            rows, beyond = self._numbers(most)
            kept = self._lines[place] = np.interp(rows, self.rows, self.table[place]) * beyond
        return kept[:most]

    def _numbers(self, most: int) -> tuple[FloatArray, FloatArray]:
        """1, 2, ... most, and the ratio of each to the most measured rows, at least 1."""
        if most not in self._many:
            rows = np.arange(1.0, most + 1)
            self._many[most] = rows, np.maximum(rows / self.rows[-1], 1.0)
        return self._many[most]

    def _between(self, context: int) -> tuple[int, int, float]:
        above = bisect.bisect_left(self.contexts, context)
        if above == 0:
            return 0, 0, 0.0
        if above == len(self.contexts):
            return above - 1, above - 1, 0.0
        low, high = self.contexts[above - 1], self.contexts[above]
        return above - 1, above, (context - low) / (high - low)

    def to_json(self) -> dict[str, Any]:
        """The table as it is stored: without lines of which nothing but their roots was seen."""
        kept = [
            place
            for place in range(len(self.table))
            if place not in self._new or len(self._new[place].seen) > 1
        ]
        table = [[cell * self.drift for cell in self.table[place]] for place in kept]
        return {
            "rows": self.rows,
            "contexts": [self.contexts[place] for place in kept],
            "seconds": table,
            "tree": self.tree * self.drift,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "CostModel":
        """Read a stored table; raises ValueError when it is not one."""
        rows, contexts = (np.array(record[key], np.int64) for key in ("rows", "contexts"))
        table = np.array(record["seconds"], np.float64)
        tree = float(record.get("tree", 0.0))
        whole = table.size and table.shape == (len(contexts), len(rows))
        ascending = (np.diff(rows) > 0).all() and (np.diff(contexts) > 0).all()
        positive = (np.isfinite(table) & (table > 0)).all() and 0 <= tree < np.inf
        if not whole or rows[0] != 1 or not ascending or not positive:
            raise ValueError("not a table of seconds by contexts and rows")
        return cls(rows.tolist(), contexts.tolist(), table.tolist(), tree=tree)

    def replace_with(self, other: "CostModel") -> None:
        """Replace the table by another model's, in place, so that every holder sees it."""
        self.rows = other.rows
        self.contexts = other.contexts
        self.table = other.table
        self.drift = other.drift
        self.tree = other.tree
        self._growth = None
        self._new.clear()
        self._lines.clear()
        self._many.clear()

    def save(self, path: Path) -> None:
        """Write the table atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.to_json(), indent=1))
        draft.replace(path)


def rising_line(
    rows: list[int], short: list[float], long: list[float], span: int
) -> tuple[float, float]:
    """Start and slope by rows of (long - short) / span, both at least 0; 0 without a span."""
    if span <= 0:
        return 0.0, 0.0
    # a cell's weight is 1 / rows
    known = list(zip(rows, short, long, strict=True))
    total = sum(1 / count for count in rows)
    mean = len(rows) / total
    grown = sum((after - before) / count for count, before, after in known) / total
    products = sum((count - mean) * (after - before) / count for count, before, after in known)
    squares = sum((count - mean) ** 2 / count for count in rows)
    slope = max(products / squares, 0.0) if squares else 0.0
    start = grown - slope * mean
    if start < 0:  # in proportion to the rows
        start = 0.0
        slope = sum(after - before for _, before, after in known) / sum(rows)
    return max(start, 0.0) / span, max(slope, 0.0) / span


def nearest(known: list[int], number: int) -> int:
    """Index of the nearest known number; the smaller of two."""
    above = bisect.bisect_left(known, number)
    if above == len(known) or (above and number - known[above - 1] <= known[above] - number):
        return above - 1
    return above


def flat(seconds: float = 1.0) -> CostModel:
    """A model in which any pass costs the same: the default before measuring."""
    return CostModel([1, 1024], [0], [[seconds, seconds]])
