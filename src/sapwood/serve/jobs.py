"""What the server's front and its engine hand to each other: jobs in, steps out."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from sapwood.completion import Step
from sapwood.errors import SapwoodError
from sapwood.sampling import Sampling


class Busy(SapwoodError):
    """The queue is full; the same request may succeed later."""


class Expired(SapwoodError):
    """The request took longer than it may."""


@dataclass(frozen=True)
class Job:
    """One text to continue."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tenant: str = ""  # with whom it shares remembered texts; the empty one is everybody without a key
    recipe: str = ""  # a name or spelling; empty is the server's own
    prediction: tuple[int, ...] = ()  # tokens that the caller expects as the answer
    seconds: float = math.inf  # longest stay, queue included


@dataclass(eq=False)
class Ticket:
    """A job under way, as its owner sees it: steps arrive on the owner's event loop."""

    job: Job
    number: int
    loop: asyncio.AbstractEventLoop
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None  # when it was first given memory, by the same clock
    steps: "asyncio.Queue[Step | Exception]" = field(default_factory=asyncio.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    wake: Callable[[], None] = lambda: None  # tells the engine that something has changed

    def cancel(self) -> None:
        """Give the job up; its memory is free before the next round."""
        self.cancelled.set()
        self.wake()

    def give(self, step: Step | Exception) -> None:
        """Hand a step, or the reason for there being no further one, to the owner; called by the engine's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.steps.put_nowait, step)

    async def __aiter__(self) -> AsyncIterator[Step]:
        """The steps as they come; leaving early gives the job up."""
        try:
            while True:
                step = await self.steps.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.done:
                    return
        finally:
            self.cancel()
