"""Measures the seconds of a target pass on this machine, and keeps the curve between runs."""

import contextlib
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.cost import CostCurve, flat
from sapwood.paths import cache_folder
from sapwood.protocols import Backend, Session, Work
from sapwood.records import BackendInfo
from sapwood.tree import Tree

Progress = Callable[[str], None]

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
QUICK, FULL = (256,), (0, 256, 1024, 4096)  # contexts
QUICK_S, FULL_S = 2.5, 8.0  # seconds of measuring per context
DEPTH = 8  # of the trees that are timed
SWEEPS = 3  # at least so many times each size; the first warms up and is not counted
KEEP_S = 30.0  # seconds between two savings of a curve that running requests refine


@dataclass
class Profile:
    """The cost curve of one model on one device, measured or not, and where it is kept."""

    path: Path
    curve: CostCurve = field(default_factory=flat)
    measured: bool = False
    _saved: float = field(default_factory=time.monotonic)  # when
    _record: dict[str, Any] = field(default_factory=dict)  # what is in the file

    @classmethod
    def open(cls, info: BackendInfo) -> "Profile":
        """What was stored for this model and device; a flat curve where nothing was."""
        path = place(info)
        try:
            record = json.loads(path.read_text())
            return cls(path, CostCurve.from_json(record), measured=True, _record=record)
        except (OSError, ValueError, KeyError, TypeError):  # absent, or damaged: it is measured again
            return cls(path)

    def measure(self, target: Backend, contexts: Sequence[int], seconds: float, progress: Progress) -> None:
        """Time the target and store the curve."""
        self.curve, self.measured = measure(target, contexts, seconds, progress), True
        self.keep(at_once=True)

    def keep(self, *, at_once: bool = False) -> None:
        """Store what running requests refined, now and then."""
        if not self.measured or not (at_once or time.monotonic() - self._saved > KEEP_S):
            return
        record = self.curve.to_json()
        if record != self._record:
            with contextlib.suppress(OSError):  # a folder that cannot be written costs a measurement next time
                self.curve.save(self.path)
        self._saved, self._record = time.monotonic(), record


def place(info: BackendInfo) -> Path:
    """The file of this model, backend, device, dtype and number of threads."""
    key = f"{info.model}-{info.name}-{info.device}-{info.dtype}-{info.threads}"
    return cache_folder() / "profiles" / (re.sub(r"[^\w.-]+", "_", key).strip("_.") + ".json")


def measure(target: Backend, contexts: Sequence[int], seconds: float, progress: Progress) -> CostCurve:
    """Medians of interleaved repeats, by context and rows; about `seconds` for each context."""
    info, noise = target.info, np.random.default_rng(0)
    rows = [count for count in ROWS if count <= min(info.max_nodes, info.context // 2)]
    grid = sorted({min(context, max(info.context - 2 * DEPTH, 0)) for context in contexts})
    session = target.open(noise.integers(info.vocab, size=grid[-1]).tolist())
    table = []
    try:
        for context in reversed(grid):  # one prompt, cut shorter each time
            progress(f"measuring passes of {info.model} at context {context}")
            session.rewind(context)
            table.append(line(target, session, rows, seconds, noise))
    finally:
        session.close()
    return CostCurve(rows, grid, table[::-1])


def line(
    target: Backend, session: Session, rows: Sequence[int], seconds: float, noise: np.random.Generator
) -> list[float]:
    """Median seconds of a pass for each number of rows at the session's length."""
    trees = [bush(count, target.info.vocab, noise) for count in rows]
    times: list[list[float]] = [[] for _ in rows]
    end, sweeps = time.perf_counter() + seconds, 0
    while sweeps < SWEEPS or time.perf_counter() < end:
        for column in range(len(rows))[:: 1 if sweeps % 2 else -1]:  # up and down, so that drift evens out
            times[column].append(once(target, session, trees[column]))
        sweeps += 1
    return [statistics.median(cell[1:]) for cell in times]


def once(target: Backend, session: Session, tree: Tree) -> float:
    """Seconds to score a tree, read the best tokens and commit the root."""
    length, start = session.length, time.perf_counter()
    [scores] = target.score([Work(session, tree)])
    scores.argmax()  # waits for the device
    session.commit([0])
    spent = time.perf_counter() - start
    session.rewind(length)
    return spent


def bush(rows: int, vocab: int, noise: np.random.Generator) -> Tree:
    """A random tree of this many nodes: chains that branch, to a bounded depth."""
    tree = Tree(int(noise.integers(vocab)), capacity=rows)
    while len(tree) < rows:
        inner = np.flatnonzero(tree.depths < DEPTH)
        parent = int(inner[-1 if noise.random() < 0.5 else noise.integers(len(inner))])
        tree.add(parent, int(noise.integers(vocab)), 1.0, sampled=True)
    return tree
