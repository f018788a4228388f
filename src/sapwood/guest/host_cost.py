"""Seconds of the host's steps by rows: learned while it serves, kept between runs.

The host cannot be asked to run passes for timing, so every step that it runs is a measurement. A
column of the table is known after a few steps, whose median it is. Until then it follows the known
ones along a line through the last steps, whatever their rows were, so that steps with many rows
tell what those with few would take. Before steps of different rows were seen the line rises little,
and a column is not ruled out by its first slow step: a size is tried a few times. A known column
follows the host as those of a measured table do.
"""

import json
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.cache_dir import write_cached
from sapwood.core.types import BackendInfo
from sapwood.engine.cost_model import CostModel, nearest
from sapwood.engine.cost_profiler import KEEP_S, place
from sapwood.estimators.isotonic import rising

ROWS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
SLOPE = 256.0  # rows that double the seconds of one row, until they are measured
GUESS = 0.01  # seconds of one row before any step was seen
ENOUGH = 3  # steps after which a column is known
RECENT = 32  # steps in the line through different rows
FEW = 4  # steps before which there is no such line
APART = 1.25  # ratio of rows from which two steps tell a slope


@dataclass
class HostCost(CostModel):
    """A cost model that begins unknown and learns each column from the host's steps."""

    # first steps of each column that is not known yet, in seconds before drift
    samples: dict[int, list[float]] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)  # columns
    # the last steps, (rows, seconds before drift), and the line through them: seconds of no rows
    # and of each row
    steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    fitted: tuple[float, float] | None = None

    @classmethod
    def unknown(cls) -> "HostCost":
        """The model before the first step."""
        return cls(list(ROWS), [0], [[GUESS * prior(rows) / prior(1) for rows in ROWS]])

    def observe(self, rows: int, context: int, seconds: float, trees: int = 1) -> None:
        """Learn a new column by its first steps; refine known ones."""
        if seconds <= 0:
            return
        self.steps.append((rows, seconds / self.drift))
        column = nearest(self.rows, rows)
        if column in self.known:
            super().observe(rows, context, seconds, trees)
            return
        self.fitted = line_through(self.steps)
        scaled = seconds * self._shape(self.rows[column]) / self._shape(rows)
        found = self.samples.setdefault(column, [])
        found.append(scaled / self.drift)
        if len(found) >= ENOUGH:
            self.known.add(column)
            self.table[0][column] = float(np.median(self.samples.pop(column)))
        self._fill()

    @property
    def scaled(self) -> bool:
        """True when a step was timed, so that seconds are the host's and not a guess."""
        return bool(self.known or self.samples)

    @property
    def measured(self) -> bool:
        """True when steps of different rows were timed, so that the price of a row is known."""
        return self.fitted is not None or len(self.known) > 1

    def knows(self, rows: int) -> bool:
        """True when steps of so many rows were timed often enough."""
        return nearest(self.rows, rows) in self.known

    def _shape(self, rows: Any) -> Any:
        """Relative seconds of a step by rows: along the fitted line, or as they are guessed."""
        if self.fitted is None:
            return prior(rows)
        start, each = self.fitted
        return start + each * rows

    def _fill(self) -> None:
        """Fit the whole table to the columns that were seen."""
        rows = np.array(self.rows, float)
        quick = {column: min(found) for column, found in self.samples.items()}
        if self.known:
            at = sorted(self.known)
            fitted = rising(np.array(self.table[0])[at], np.ones(len(at)))
        else:  # the scale of the quickest step, relative to its rows
            at = [min(quick, key=lambda column: quick[column] / self._shape(rows[column]))]
            fitted = np.array([quick[at[0]]])
        line = np.interp(rows, rows[at], fitted)  # level beyond both ends
        line *= self._shape(rows) / self._shape(np.clip(rows, rows[at[0]], rows[at[-1]]))
        for column, seconds in quick.items():
            line[column] = min(line[column], seconds)
        self.table[0] = np.maximum.accumulate(line).tolist()
        self._lines.clear()

    def to_json(self) -> dict[str, Any]:
        """The table as it is stored, with the columns that are known."""
        return super().to_json() | {"known": sorted(self.known)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "HostCost":
        """Read a stored table; raises ValueError when it is not one."""
        read = CostModel.from_json(record)
        known = {int(column) for column in record["known"]}
        if read.rows != ROWS or len(read.contexts) != 1 or not known <= set(range(len(ROWS))):
            raise ValueError("not a table of a host's seconds by rows")
        return cls(read.rows, read.contexts, read.table, known=known)


def prior(rows: Any) -> Any:
    """Seconds of a step by rows, relative to no rows, before they are measured."""
    return 1.0 + rows / SLOPE


def line_through(steps: Iterable[tuple[int, float]]) -> tuple[float, float] | None:
    """Seconds of no rows and of each row, by the slopes of all pairs of steps (Theil and Sen).

    Of those slopes the lower quartile counts and not the median: on a busy host slopes scatter
    widely, and a row that is thought too dear is not tried again. None for a few steps, or for
    those of nearly the same rows. A row costs no less than it is guessed to before.
    """
    rows, seconds = np.array(list(steps), float).reshape(-1, 2).T
    apart = rows[:, None] >= APART * rows
    if len(rows) < FEW or np.count_nonzero(apart) < FEW:
        return None
    rise = (seconds[:, None] - seconds)[apart] / (rows[:, None] - rows)[apart]
    least = float(np.median(seconds / prior(rows))) / SLOPE
    most = float(np.median(seconds / rows))  # a step of no rows takes some time
    each = min(max(float(np.quantile(rise, 0.25)), least), most)
    return max(float(np.median(seconds - each * rows)), 0.01 * most), each


@dataclass
class HostCostFile:
    """A host's cost model and the file that keeps it between runs."""

    path: Path
    cost: HostCost
    saved: float = field(default_factory=time.monotonic)  # time of the last save

    @classmethod
    def open(cls, info: BackendInfo) -> "HostCostFile":
        """The cost model stored for this host, model and device, or an unknown one."""
        path = place(info)
        try:
            return cls(path, HostCost.from_json(json.loads(path.read_text())))
        # a missing or damaged file: the host is learned again
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return cls(path, HostCost.unknown())

    def keep(self, *, at_once: bool = False) -> None:
        """Save the model if it knows anything, at most every KEEP_S seconds unless `at_once`."""
        if self.cost.known and (at_once or time.monotonic() - self.saved > KEEP_S):
            write_cached(self.path, json.dumps(self.cost.to_json(), indent=1).encode())
            self.saved = time.monotonic()
