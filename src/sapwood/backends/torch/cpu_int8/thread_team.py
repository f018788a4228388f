"""Threads that run one compiled function together, stage by stage.

A stage is split into items, and each free thread takes the next one. It is over when all items are
done, not when all threads have arrived: a thread that sleeps, or that the system has descheduled,
delays the others only if that happens in the middle of an item. After such a delay the caller works
alone for a while. A caller with other work leaves when the helpers are running, and comes back to
help them finish. After a pass idle helpers prefetch the weights of the next draft, since a pass
evicts those of a trained head from the caches.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.cpu_int8.intrinsics import (
    LINE,
    add_atomic,
    load_atomic,
    pause,
    yield_core,
)
from sapwood.backends.torch.cpu_int8.pointwise import compiled
from sapwood.core.array_types import IntArray

PATIENCE = 3000  # polls of a counter before the core is yielded
LONGEST = 64  # most tasks that the caller runs alone before helpers are tried again
# int64 of a stage's counters, one cache line: items taken, and items done
COUNTERS = 8
DONE = 8  # byte offset of the second counter
# int64 of a task's state: helpers that have arrived, and whether the caller may leave or has left
ARRIVED = 0
LEFT = 1
MAY, HAS = 1, 2
ALIGN = 64  # bytes of a cache line
NO_RANGES = np.empty((0, 2), np.int64)


# -------------------------------------------------------------------------------- stages of a task
@compiled
def wait(counter: int, items: int) -> int:
    """Wait until all items of a stage are done; the number of times the core was yielded."""
    looks = 0
    while load_atomic(counter + DONE) < items:
        looks += 1
        if looks < PATIENCE:
            pause()
        else:
            yield_core()
    return max(looks - PATIENCE, 0)


@compiled
def take(counter: int, items: int, worker: int) -> int:
    """The next item of a stage, or `items` if none is left; a single item is the caller's."""
    if worker and items == 1:
        return items
    taken: int = add_atomic(counter, 1)
    return min(taken, items)


@compiled
def arrive(state: int, worker: int) -> None:
    """Count a helper as arrived."""
    if worker:
        add_atomic(state, 1)


@compiled
def acting_worker(state: int, worker: int) -> int:
    """The worker to take items as: while the caller is away, any helper takes its place."""
    return 0 if load_atomic(state + 8 * LEFT) == HAS else worker


@compiled
def caller_leaves(state: int, worker: int, workers: int) -> bool:
    """True if this is the caller, it may leave, and all helpers are running."""
    if worker or load_atomic(state + 8 * LEFT) != MAY or load_atomic(state) < workers - 1:
        return False
    add_atomic(state + 8 * LEFT, HAS - MAY)
    return True


@compiled
def finish(counter: int) -> None:
    """Count an item as done."""
    add_atomic(counter + DONE, 1)


@compiled
def share(count: int, item: int, items: int) -> tuple[int, int]:
    """First unit of an item, and the one after its last."""
    return count * item // items, count * (item + 1) // items


class ThreadTeam:
    """Worker threads, as many as torch may use; the caller alone while the cores are busy."""

    def __init__(self) -> None:
        self._helpers: list[TeamThread] = []
        self._alone = 0  # tasks that the caller still runs alone
        self._longer = 1  # tasks that it will run alone after the next delay

    def run(self, task: Callable[..., int], *arguments: Any) -> None:
        """Run `task(*arguments, worker, workers)` on all threads; it returns its core yields."""
        self._note(self._run(self._size(), task, arguments))

    def begin(self, task: Callable[..., int], state: IntArray, *arguments: Any) -> "AsyncTask":
        """`run`, but return when the helpers are running; `state`, int64 zeros, is an argument."""
        workers = self._size()
        state[LEFT] = MAY if workers > 1 else 0
        yields = self._run(workers, task, arguments)
        if state[LEFT] != HAS:
            self._note(yields)
            return AsyncTask()

        def rest() -> None:
            state[LEFT] = 0
            self._note(yields + task(*arguments, 0, workers))

        return AsyncTask(rest)

    def _size(self) -> int:
        return 1 if self._alone else torch.get_num_threads()

    def _note(self, yields: int) -> None:
        """Work alone for some tasks after one in which cores were busy."""
        if yields:
            self._alone = self._longer
            self._longer = min(2 * self._longer, LONGEST)
        elif self._alone:
            self._alone -= 1
        else:
            self._longer = 1

    def _run(self, workers: int, task: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        while len(self._helpers) < workers - 1:
            self._helpers.append(TeamThread())
        for worker, helper in enumerate(self._helpers[: workers - 1], 1):
            helper.give(task, (*arguments, worker, workers))
        return task(*arguments, 0, workers)

    def forget(self) -> None:
        """Drop the threads, in a forked process that has none of them."""
        self._helpers = []


class AsyncTask:
    """A running task; `finish` runs the caller's rest of it and waits."""

    def __init__(self, rest: Callable[[], None] | None = None) -> None:
        self._rest = rest  # the caller's rest; None when all is done
        self._after: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` when the task is done."""
        with self._lock:
            if self._rest is not None:
                self._after.append(act)
                return
        act()

    def finish(self) -> None:
        """Help to finish the task, and return when it is done."""
        if self._rest is not None:
            with self._lock:
                if self._rest is not None:
                    self._rest()
                    self._rest = None
                    for act in self._after:
                        act()


class TeamThread:
    """One thread, which sleeps until it is given a task."""

    def __init__(self) -> None:
        self._ready = threading.Lock()  # held while there is no task
        self._ready.acquire()
        self._task: tuple[Callable[..., int], tuple[Any, ...]] | None = None
        threading.Thread(target=self._work, daemon=True, name="sapwood-pass").start()

    def give(self, task: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        """Run a task; an earlier one that was not begun is over by now and is dropped."""
        self._task = task, arguments
        with contextlib.suppress(RuntimeError):  # the thread is running already
            self._ready.release()

    def _work(self) -> None:
        while True:
            self._ready.acquire()
            given, self._task = self._task, None
            if given is not None:
                given[0](*given[1])
            del given


TEAM = ThreadTeam()
os.register_at_fork(after_in_child=TEAM.forget)


# ---------------------------------------------------------------------------------------- prefetch
@compiled
def fetch_all(places: Any, worker: int, workers: int) -> None:
    """Load one helper's share of these ranges, int64 [n, 2]: address and bytes."""
    for p in range(places.shape[0]):
        start, stop = share(places[p, 1] // LINE, worker - 1, workers - 1)
        for line in range(start, stop):
            # a load: prefetch hints are dropped while many are outstanding
            load_atomic(places[p, 0] + line * LINE)


class AddressTable:
    """Addresses and sizes of arrays, and references that keep them alive."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self.arrays = arrays
        self.table = np.array([(address(array), array.nbytes) for array in arrays])
        # an array made of this object holds a reference to it
        self.__array_interface__ = self.table.__array_interface__


def address_ranges(arrays: Sequence[np.ndarray[Any, Any]]) -> IntArray:
    """Addresses and bytes of arrays, [n, 2]; it keeps the arrays alive for late helpers."""
    return np.asarray(AddressTable(arrays))


class Prefetcher:
    """Memory ranges that helpers load into the caches after the next pass, once."""

    def __init__(self) -> None:
        self._places = NO_RANGES

    def want(self, places: IntArray) -> None:
        """Prefetch these ranges after the next pass."""
        self._places = places

    def take(self) -> IntArray:
        """The requested ranges, which are cleared."""
        places, self._places = self._places, NO_RANGES
        return places


PREFETCHER = Prefetcher()


# ------------------------------------------------------------------------------------------ memory
def address(array: np.ndarray[Any, Any]) -> int:
    """Address of an array's first byte."""
    return int(array.ctypes.data)


def aligned(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """An array of zeros that begins at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + ALIGN, np.uint8)
    start = -address(room) % ALIGN
    found: np.ndarray[Any, Any] = room[start : start + size].view(dtype).reshape(shape)
    return found
