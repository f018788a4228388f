"""Measures the seconds of a target pass on this machine, and keeps the curve between runs."""

import contextlib
import json
import re
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
Times = dict[int, list[float]]  # rows -> seconds of each pass

ROWS = (1, 8, 2, 16, 4, 32, 5, 12, 64, 3, 24, 6, 48)  # in this order: the first few already show the shape
QUICK_ROWS = ROWS[:9]
QUICK, FULL = (128, 768), (0, 256, 1024, 4096)  # contexts
QUICK_S, FULL_S = 1.5, 8.0  # seconds of measuring per context
DEPTH = 8  # of the trees that are timed
ENOUGH = 4  # sizes that are timed however slow the machine is
PREPARE = 2  # passes of each size that a GPU backend may spend on compiling and capturing it
WIDE = (64, 96, 128, 192, 256)  # rows of passes that many requests share
CROWD = 8  # requests in the passes that tell what a further tree costs
WIDE_S = 0.5  # seconds of measuring each of these two
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
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # absent, or damaged: it is measured again
            return cls(path)

    def measure(self, target: Backend, progress: Progress, *, quick: bool) -> None:
        """Time the target and store the curve; what a quick look on a busy machine gets wrong, rounds correct."""
        rows, contexts, seconds = (QUICK_ROWS, QUICK, QUICK_S) if quick else (ROWS, FULL, FULL_S)
        self.curve.become(measure(target, rows, contexts, seconds, progress))
        self.measured = True
        self.keep(at_once=True)

    def widen(self, target: Backend, progress: Progress) -> None:
        """Measure what passes of many requests take, unless that is known; for whoever serves them."""
        if not self.measured or self.curve.rows[-1] >= WIDE[-1] or target.info.max_nodes < WIDE[-1]:
            return
        progress(f"measuring passes of many requests to {target.info.model}")
        self.curve.become(widened(target, self.curve))
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


def measure(
    target: Backend, sizes: Sequence[int], contexts: Sequence[int], seconds: float, progress: Progress
) -> CostCurve:
    """The curve, from about `seconds` of timing at each context."""
    info, noise = target.info, np.random.default_rng(0)
    rows = [count for count in sizes if count <= min(info.max_nodes, info.context // 2)]
    stage = getattr(target, "stage", None) or as_it_is  # a device that grows trees checks them where they lie
    trees: list[Tree] = [stage(bush(count, info.vocab, noise)) for count in rows]
    grid = sorted({min(context, max(info.context - 2 * DEPTH, 0)) for context in contexts})
    session = target.open(noise.integers(info.vocab, size=grid[-1]).tolist())
    times = []
    try:
        for context in reversed(grid):  # one prompt, cut shorter each time
            progress(f"measuring passes of {info.model} at context {context}")
            session.rewind(context)
            times.append(sweep(target, session, trees, seconds))
    finally:
        session.close()
    table = [line(sorted(rows), cells) for cells in reversed(times)]
    return CostCurve(sorted(rows), grid, table)


def widened(target: Backend, curve: CostCurve) -> CostCurve:
    """The same curve with more rows, and with what each further tree of a pass costs."""
    info, noise = target.info, np.random.default_rng(0)
    context = min(QUICK[0], info.context // 4)
    session = target.open(noise.integers(info.vocab, size=context).tolist())
    forks: list[Session] = []
    try:
        times = sweep(target, session, [bush(rows, info.vocab, noise) for rows in WIDE], WIDE_S)
        forks += [session.fork() for _ in range(CROWD)]
        together = crowded(target, forks, Tree(0))
    finally:
        for held in (session, *forks):
            held.close()
    found, last = line(WIDE, times), curve.rows[-1]
    base = float(np.interp(last, (0, *WIDE), (0.0, *found)))  # as long as the last rows that are known
    more = [(rows, seconds / base) for rows, seconds in zip(WIDE, found, strict=True) if rows > last]
    known = [cells[-1] for cells in curve.table]
    table = [[*cells, *(end * ratio for _, ratio in more)] for cells, end in zip(curve.table, known, strict=True)]
    tree = max(together / curve.drift - curve.seconds(CROWD, context) / curve.drift, 0.0) / (CROWD - 1)
    return CostCurve([*curve.rows, *(rows for rows, _ in more)], curve.contexts, table, curve.drift, tree)


def crowded(target: Backend, sessions: Sequence[Session], root: Tree) -> float:
    """Seconds of a pass over one row of each of these sessions."""
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < WIDE_S or len(times) < ENOUGH:
        begun = time.perf_counter()
        scores = target.score([Work(session, root) for session in sessions])
        scores[-1].argmax()  # waits for the device
        times.append(time.perf_counter() - begun)
    return float(np.quantile(times[1:], 0.25))


def sweep(target: Backend, session: Session, trees: Sequence[Tree], seconds: float) -> Times:
    """Time the trees in turn, again and again; on a slow machine only the first few of them."""
    once(target, session, trees[0])  # warms up
    for tree in trees if target.info.device.startswith("cuda") else ():
        for _ in range(PREPARE):
            once(target, session, tree)
    times: Times = {}
    start = time.perf_counter()
    for tree in trees:
        times[len(tree)] = [once(target, session, tree)]
        if time.perf_counter() - start > 2 * seconds and len(times) >= ENOUGH:
            break
    while time.perf_counter() - start < seconds:
        for tree in trees[: len(times)]:
            times[len(tree)].append(once(target, session, tree))
    return times


def line(rows: Sequence[int], times: Times) -> list[float]:
    """Seconds by rows; between and beyond the timed ones on straight lines, never above one by one."""
    known = sorted(times)
    # the lower quartile: whatever else the machine does can only add to a time
    typical = [float(np.quantile(times[count][1:] or times[count], 0.25)) for count in known]
    slope = max((typical[-1] - typical[0]) / max(known[-1] - known[0], 1), 0.0)
    filled = np.interp(rows, known, typical) + slope * np.maximum(np.array(rows) - known[-1], 0)
    # n rows cannot cost more than n passes of one row: what was timed above that is a busy machine
    capped: list[float] = np.minimum(filled, typical[0] * np.array(rows)).tolist()
    return capped


def once(target: Backend, session: Session, tree: Tree) -> float:
    """Seconds to score a tree, read the best tokens and commit the root."""
    length, start = session.length, time.perf_counter()
    [scores] = target.score([Work(session, tree)])
    scores.argmax()  # waits for the device
    session.commit([0])
    spent = time.perf_counter() - start
    session.rewind(length)
    return spent


def as_it_is(tree: Tree) -> Tree:
    """The tree itself."""
    return tree


def bush(rows: int, vocab: int, noise: np.random.Generator) -> Tree:
    """A random tree of this many nodes: chains that branch, to a bounded depth."""
    tree = Tree(int(noise.integers(vocab)), capacity=rows)
    while len(tree) < rows:
        inner = np.flatnonzero(tree.depths < DEPTH)
        parent = int(inner[-1 if noise.random() < 0.5 else noise.integers(len(inner))])
        tree.add(parent, int(noise.integers(vocab)), 1.0, sampled=True)
    return tree
