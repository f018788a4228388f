"""Requests that run through a front: limits per key, draining, and aborting at the end."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

from sapwood.engine.request import QueueFull
from sapwood.server.dispatcher import shutting_down
from sapwood.server.limits import Limits


class Admission:
    """Counts running requests by tenant, over all replicas together."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.draining = False
        self._running: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._aborted = False

    @property
    def busy(self) -> int:
        """API requests in progress."""
        return self._running.total()

    @contextlib.contextmanager
    def admit(self, tenant: str) -> Iterator[None]:
        """Count a request while it runs; refuse one above the limit of its key."""
        if self.draining:
            raise shutting_down()
        if tenant and self._running[tenant] >= self.limits.per_key:
            raise QueueFull(
                f"{self.limits.per_key} requests of this key are running already; "
                "wait for one to end"
            )
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            self._running += Counter()  # drops tenants without a request

    async def abortable(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work of a request; `abort` ends it with an error."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await work
        except asyncio.CancelledError:
            if self._aborted:
                raise shutting_down() from None
            raise
        finally:
            self._tasks.discard(task)

    def abort(self) -> None:
        """Fail all requests that are still running."""
        self._aborted = True
        for task in self._tasks:
            task.cancel()
