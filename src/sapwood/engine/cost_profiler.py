"""Measures the seconds of a target pass on this machine, and keeps the curve between runs."""

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.cache_dir import cache_folder
from sapwood.core.protocols import Backend, Session, TreeInput
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.machine_load import LoadMeter

Progress = Callable[[str], None]
Times = dict[int, list[float]]  # rows -> seconds of each pass

# rows of timed passes, in this order: the first few already show the shape of the curve
ROWS = (1, 8, 2, 16, 4, 32, 5, 12, 64, 3, 24, 6, 48)
QUICK_ROWS = ROWS[:9]
# context lengths
QUICK = (128, 768)
FULL = (0, 256, 1024, 4096)
# seconds of measuring per context
QUICK_S = 1.5
FULL_S = 8.0
PROBE = 32  # tokens of a prompt by which the time of longer ones is estimated
DEPTH = 8  # of the trees that are timed
ENOUGH = 4  # sizes that are always timed, also on a slow machine
PREPARE = 2  # passes of each size that a GPU backend may spend on compiling and capturing it
WIDE = (64, 96, 128, 192, 256)  # rows of passes that many requests share
REQUESTS = 8  # requests in the passes that measure the cost of each further tree
WIDE_S = 0.5  # seconds of measuring WIDE, and again of measuring REQUESTS
LOG = logging.getLogger("sapwood.cost_profiler")  # without a handler: to standard error
WARNED: list[str] = []  # reasons that were logged in this process: the first alone
KEEP_S = 30.0  # seconds between two saves of a curve that running requests refine
BUSY_S = 600.0  # seconds for which a curve of a busy machine serves later starts


@dataclass
class CostProfile:
    """The cost curve of one model on one device, and the file that stores it."""

    path: Path
    curve: CostModel = field(default_factory=flat)
    measured: bool = False
    disturbance: str | None = None  # why the measured curve is not kept: the machine was busy
    _saved: float = field(default_factory=time.monotonic)  # time of the last save
    _record: dict[str, Any] = field(default_factory=dict)  # content of the file

    @classmethod
    def open(cls, info: BackendInfo) -> "CostProfile":
        """The profile stored for this model and device; a flat curve when there is none."""
        path = place(info)
        try:
            record = json.loads(path.read_text())
            return cls(path, CostModel.from_json(record), measured=True, _record=record)
        # a missing or damaged file: the curve is measured again
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return cls._open_busy(path)

    @classmethod
    def _open_busy(cls, path: Path) -> "CostProfile":
        """The curve that a busy machine has measured lately; a flat one if it has not."""
        try:
            file = busy_file(path)
            if time.time() - file.stat().st_mtime > BUSY_S:
                return cls(path)
            curve = CostModel.from_json(json.loads(file.read_text()))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return cls(path)
        return cls(path, curve, measured=True, disturbance="the machine was busy")

    def measure(
        self, target: Backend, progress: Progress, *, quick: bool, keep_busy: bool = False
    ) -> None:
        """Time the target and store the curve; later rounds refine it.

        A curve measured on a busy machine is stored for some minutes only unless `keep_busy`.
        """
        rows, contexts, seconds = (QUICK_ROWS, QUICK, QUICK_S) if quick else (ROWS, FULL, FULL_S)
        meter = LoadMeter()
        self.curve.replace_with(measure(target, rows, contexts, seconds, progress, meter))
        self.measured = True
        self._judge(None if keep_busy else meter.disturbance(target.info))
        if self.disturbance is not None:
            with contextlib.suppress(OSError):
                self.curve.save(busy_file(self.path))
        self.keep(at_once=True)

    def _judge(self, disturbance: str | None) -> None:
        """Remember why a measurement is not kept, and warn about it once in a process."""
        self.disturbance = disturbance
        if disturbance is not None and not WARNED:
            WARNED.append(disturbance)
            LOG.warning(
                "sapwood: the cost of a pass was measured while %s; it will be measured again in "
                "%d minutes",
                disturbance,
                BUSY_S // 60,
            )

    def widen(self, target: Backend, progress: Progress) -> None:
        """Time passes that many requests share, unless they are in the curve; for servers."""
        if not self.measured or self.curve.rows[-1] >= WIDE[-1] or target.info.max_nodes < WIDE[-1]:
            return
        progress(f"measuring passes of many requests to {target.info.model}")
        meter = LoadMeter()
        self.curve.replace_with(widened(target, self.curve, meter))
        self._judge(self.disturbance or meter.disturbance(target.info))
        self.keep(at_once=True)

    def keep(self, *, at_once: bool = False) -> None:
        """Save the refined curve, at most every KEEP_S seconds unless `at_once`."""
        if self.disturbance is not None:
            return
        if not self.measured or not (at_once or time.monotonic() - self._saved > KEEP_S):
            return
        record = self.curve.to_json()
        if record != self._record:
            # without a writable folder the curve is measured again next time
            with contextlib.suppress(OSError):
                self.curve.save(self.path)
        self._saved = time.monotonic()
        self._record = record


def place(info: BackendInfo) -> Path:
    """The file of this model, backend, device, dtype and number of threads."""
    key = f"{info.model}-{info.name}-{info.device}-{info.dtype}-{info.threads}"
    return cache_folder() / "profiles" / (re.sub(r"[^\w.-]+", "_", key).strip("_.") + ".json")


def busy_file(path: Path) -> Path:
    """The file of a curve that was measured on a busy machine."""
    return path.with_suffix(".busy.json")


def measure(
    target: Backend,
    sizes: Sequence[int],
    contexts: Sequence[int],
    seconds: float,
    progress: Progress,
    meter: LoadMeter | None = None,  # gets the times of all passes
) -> CostModel:
    """Measure the curve, in about `seconds` at each context."""
    info = target.info
    noise = np.random.default_rng(0)
    rows = [count for count in sizes if count <= min(info.max_nodes, info.context // 2)]
    # a device that drafts trees verifies them without a copy from the host
    place_tree = target.capabilities.place_tree or unchanged
    trees = [place_tree(random_tree(count, info.vocab, noise)) for count in rows]
    grid = sorted({min(context, max(info.context - 2 * DEPTH, 0)) for context in contexts})
    if info.device == "cpu":
        grid = affordable(target, grid, max(2 * seconds, 1.0), noise)
    session = target.open(noise.integers(info.vocab, size=grid[-1]).tolist())
    times = []
    try:
        for context in reversed(grid):  # one prompt, shortened each time
            progress(f"measuring passes of {info.model} at context {context}")
            session.rewind(context)
            times.append(sweep(target, session, trees, seconds))
    finally:
        session.close()
    if meter is not None:
        meter.samples += [samples for cells in times for samples in cells.values()]
    table = [line(sorted(rows), cells) for cells in reversed(times)]
    return CostModel(sorted(rows), grid, table)


def affordable(
    target: Backend, grid: Sequence[int], seconds: float, noise: np.random.Generator
) -> list[int]:
    """The contexts whose prompts are prefilled within these seconds, and the shortest one."""
    if target.info.context < PROBE:
        return list(grid)
    times = []
    for _ in range(2):  # the first one may warm up
        start = time.perf_counter()
        target.open(noise.integers(target.info.vocab, size=PROBE).tolist()).close()
        times.append((time.perf_counter() - start) / PROBE)
    return [
        context for context in grid if context in (grid[0], 0) or context * min(times) <= seconds
    ]


def widened(target: Backend, curve: CostModel, meter: LoadMeter | None = None) -> CostModel:
    """The same curve with more rows, and with the cost of each further tree of a pass."""
    info = target.info
    noise = np.random.default_rng(0)
    context = min(QUICK[0], info.context // 4)
    session = target.open(noise.integers(info.vocab, size=context).tolist())
    forks: list[Session] = []
    try:
        times = sweep(
            target, session, [random_tree(rows, info.vocab, noise) for rows in WIDE], WIDE_S
        )
        forks += [session.fork() for _ in range(REQUESTS)]
        together = seconds_together(target, forks, Tree(0))
    finally:
        for held in (session, *forks):
            held.close()
    if meter is not None:
        meter.samples += times.values()
    found = line(WIDE, times)
    last = curve.rows[-1]
    # seconds now of the largest number of rows that the curve holds
    base = float(np.interp(last, (0, *WIDE), (0.0, *found)))
    more = [
        (rows, seconds / base) for rows, seconds in zip(WIDE, found, strict=True) if rows > last
    ]
    known = [cells[-1] for cells in curve.table]
    table = [
        [*cells, *(end * ratio for _, ratio in more)]
        for cells, end in zip(curve.table, known, strict=True)
    ]
    tree = max(together / curve.drift - curve.seconds(REQUESTS, context) / curve.drift, 0.0) / (
        REQUESTS - 1
    )
    return CostModel(
        [*curve.rows, *(rows for rows, _ in more)], curve.contexts, table, curve.drift, tree
    )


def seconds_together(target: Backend, sessions: Sequence[Session], root: Tree) -> float:
    """Seconds of a pass with one row of each of these sessions."""
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < WIDE_S or len(times) < ENOUGH:
        begun = time.perf_counter()
        scores = target.score([TreeInput(session, root) for session in sessions])
        scores[-1].argmax()  # waits for the device
        times.append(time.perf_counter() - begun)
    return float(np.quantile(times[1:], 0.25))


def sweep(target: Backend, session: Session, trees: Sequence[Tree], seconds: float) -> Times:
    """Time the trees in turn, repeatedly; on a slow machine only the first few of them."""
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
    """Seconds by rows: interpolated, extrapolated, rising, and at most those of one-row passes."""
    known = sorted(times)
    # the lower quartile: other load on the machine can only add to a time
    typical = [float(np.quantile(times[count][1:] or times[count], 0.25)) for count in known]
    # fewer rows cannot cost more than more rows: a higher time means a busy machine
    typical = np.minimum.accumulate(typical[::-1])[::-1].tolist()
    slope = max((typical[-1] - typical[0]) / max(known[-1] - known[0], 1), 0.0)
    filled = np.interp(rows, known, typical) + slope * np.maximum(np.array(rows) - known[-1], 0)
    # nor can n rows cost more than n passes of one row
    capped: list[float] = np.minimum(filled, typical[0] * np.array(rows)).tolist()
    return capped


def once(target: Backend, session: Session, tree: Tree) -> float:
    """Seconds to score a tree, get the best tokens and commit the root."""
    length = session.length
    start = time.perf_counter()
    [scores] = target.score([TreeInput(session, tree)])
    scores.argmax()  # waits for the device
    session.commit([0])
    spent = time.perf_counter() - start
    session.rewind(length)
    return spent


def unchanged(tree: Tree) -> Tree:
    """Return the tree unchanged: the default of `Capabilities.place_tree`."""
    return tree


def random_tree(rows: int, vocab: int, noise: np.random.Generator) -> Tree:
    """A random tree of this many nodes: branching chains of bounded depth."""
    tree = Tree(int(noise.integers(vocab)), capacity=rows)
    while len(tree) < rows:
        inner = np.flatnonzero(tree.depths < DEPTH)
        parent = int(inner[-1 if noise.random() < 0.5 else noise.integers(len(inner))])
        tree.add(parent, int(noise.integers(vocab)), 1.0, sampled=True)
    return tree
