"""Threads that run one compiled function together, stage by stage.

A stage is cut into items, and whoever is there takes the next one. It is over when all items are done, not
when everybody has come: a thread that sleeps, or that the machine needs for something else, holds
nobody up unless it does so in the middle of an item. Where that happens, the caller works alone for a while.
A caller that has something else to do leaves when the others are at work, and comes back to help them finish.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.packed.kernels import compiled
from sapwood.backends.torch.packed.machine import add_atomic, give_way, load_atomic, pause

PATIENCE = 3000  # looks at a counter before the core is offered to others
LONGEST = 64  # tasks that the caller does alone before help is tried again
DESK = 8  # int64 of a stage, a line of the caches: the items that were taken, and those that are done
DONE = 8  # bytes from the first of them to the second
CAME, LEFT = 0, 1  # int64 of a door: helpers that have come, and whether the caller may leave, or has left
MAY, HAS = 1, 2


@compiled
def wait(desk: int, items: int) -> int:
    """Wait until all items of a stage are done; how often the core was offered to others meanwhile."""
    looks = 0
    while load_atomic(desk + DONE) < items:
        looks += 1
        if looks < PATIENCE:
            pause()
        else:
            give_way()
    return max(looks - PATIENCE, 0)


@compiled
def take(desk: int, items: int, worker: int) -> int:
    """The next item of a stage, or `items` where none is left; one alone is for the one who called."""
    if worker and items == 1:
        return items
    taken: int = add_atomic(desk, 1)
    return min(taken, items)


@compiled
def come(door: int, worker: int) -> None:
    """Tell the caller that a helper is at work."""
    if worker:
        add_atomic(door, 1)


@compiled
def stands_in(door: int, worker: int) -> int:
    """The worker as whom to take items: while the caller is away, anybody may be the caller."""
    return 0 if load_atomic(door + 8 * LEFT) == HAS else worker


@compiled
def leaves(door: int, worker: int, workers: int) -> bool:
    """True where this is the caller, who may leave and has others to go on; never before an item that is alone."""
    if worker or load_atomic(door + 8 * LEFT) != MAY or load_atomic(door) < workers - 1:
        return False
    add_atomic(door + 8 * LEFT, HAS - MAY)
    return True


@compiled
def finish(desk: int) -> None:
    """Tell the others that an item is done."""
    add_atomic(desk + DONE, 1)


@compiled
def share(count: int, item: int, items: int) -> tuple[int, int]:
    """First and last but one of the units of an item."""
    return count * item // items, count * (item + 1) // items


class Team:
    """As many threads as torch may use, or the caller alone while others want the cores."""

    def __init__(self) -> None:
        self._helpers: list[Helper] = []
        self._alone = 0  # tasks that the caller does alone from now on
        self._longer = 1  # the same after the next task that was held up

    def run(self, task: Callable[..., int], *arguments: Any) -> None:
        """Run `task(*arguments, worker, workers)` by everybody; it says how often it waited in vain."""
        self._note(self._run(self._size(), task, arguments))

    def begin(self, task: Callable[..., int], door: IntArray, *arguments: Any) -> "Errand":
        """The same, but come back when the others are at work; the door, int64 zeros, is among the arguments."""
        workers = self._size()
        door[LEFT] = MAY if workers > 1 else 0
        vain = self._run(workers, task, arguments)
        if door[LEFT] != HAS:
            self._note(vain)
            return Errand()

        def rest() -> None:
            door[LEFT] = 0
            self._note(vain + task(*arguments, 0, workers))

        return Errand(rest)

    def _size(self) -> int:
        return 1 if self._alone else torch.get_num_threads()

    def _note(self, vain: int) -> None:
        """Learn whether others want the cores."""
        if vain:
            self._alone, self._longer = self._longer, min(2 * self._longer, LONGEST)
        elif self._alone:
            self._alone -= 1
        else:
            self._longer = 1

    def _run(self, workers: int, task: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        while len(self._helpers) < workers - 1:
            self._helpers.append(Helper())
        for worker, helper in enumerate(self._helpers[: workers - 1], 1):
            helper.give(task, (*arguments, worker, workers))
        return task(*arguments, 0, workers)

    def forget(self) -> None:
        """Start anew, in a process that has none of the threads."""
        self._helpers = []


class Errand:
    """A task under way, which whoever needs its results helps to finish."""

    def __init__(self, rest: Callable[[], None] | None = None) -> None:
        self._rest = rest  # what is left for the caller; None where all is done
        self._after: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def then(self, act: Callable[[], None]) -> None:
        """Do something when the task is done."""
        with self._lock:
            if self._rest is not None:
                self._after.append(act)
                return
        act()

    def finish(self) -> None:
        """Come back when the task is done."""
        if self._rest is not None:
            with self._lock:
                if self._rest is not None:
                    self._rest()
                    self._rest = None
                    for act in self._after:
                        act()


class Helper:
    """One thread, asleep until it is given a task."""

    def __init__(self) -> None:
        self._ready = threading.Lock()  # held while there is nothing to do
        self._ready.acquire()
        self._task: tuple[Callable[..., int], tuple[Any, ...]] | None = None
        threading.Thread(target=self._work, daemon=True, name="sapwood-pass").start()

    def give(self, task: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        """Have it run a task; one that it has not begun is over by now."""
        self._task = task, arguments
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._ready.release()

    def _work(self) -> None:
        while True:
            self._ready.acquire()
            given, self._task = self._task, None
            if given is not None:
                given[0](*given[1])
            del given


TEAM = Team()
os.register_at_fork(after_in_child=TEAM.forget)
