"""Requests that wait for memory: tenants take turns, preempted requests come first."""

from collections import deque
from collections.abc import Iterator

from sapwood.engine.prefill import Prefill


class WaitQueue:
    """Prefills that have no memory yet."""

    def __init__(self) -> None:
        self._preempted: list[Prefill] = []  # oldest first
        self._lines: dict[str, deque[Prefill]] = {}  # by tenant; the first tenant is next
        self.empty = True

    def add(self, prefill: Prefill) -> None:
        """Append to the tenant's queue."""
        self.empty = False
        self._lines.setdefault(prefill.tenant, deque()).append(prefill)

    def put_back(self, prefill: Prefill) -> None:
        """Requeue a preempted prefill, ahead of all but older preempted ones."""
        self.empty = False
        self._preempted.append(prefill)
        self._preempted.sort(key=lambda one: one.number)

    def first(self) -> Prefill | None:
        """The next prefill to be given memory."""
        if self._preempted:
            return self._preempted[0]
        return next((line[0] for line in self._lines.values()), None)

    def take(self, prefill: Prefill) -> None:
        """Remove a prefill; its tenant goes to the end of the turns."""
        if prefill in self._preempted:
            self._preempted.remove(prefill)
        else:
            line = self._lines.pop(prefill.tenant)
            line.remove(prefill)
            if line:
                self._lines[prefill.tenant] = line
        self.empty = not self._preempted and not self._lines

    def __iter__(self) -> Iterator[Prefill]:
        yield from list(self._preempted)
        for line in list(self._lines.values()):
            yield from list(line)

    def __len__(self) -> int:
        """Number of waiting requests."""
        return sum(len(prefill.requests) for prefill in self)
