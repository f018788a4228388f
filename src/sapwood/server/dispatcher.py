"""Submits API requests to the engine: per-key limits, deltas of all choices, draining."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from functools import partial

from sapwood.engine.outputs import Step
from sapwood.engine.request import QueueFull, Request, RequestTimeout
from sapwood.server.engine_thread import EngineThread
from sapwood.server.errors import SOON, ApiError
from sapwood.server.limits import Limits
from sapwood.server.openai.request_builder import ParsedRequest
from sapwood.server.openai.response_builder import ChoiceDelta, delta_of

Requests = tuple[Request, ...]
# called with the index of a request and its step; None: it ends with its prompt, which is done
Receive = Callable[[int, Step | Exception | None], None]


class Dispatcher:
    """Passes requests from the event loop to the engine's thread, and steps back."""

    def __init__(self, engine_thread: EngineThread, limits: Limits) -> None:
        self.engine_thread = engine_thread
        self.limits = limits
        self.draining = False
        self.running: Counter[str] = Counter()  # API requests by tenant
        self._submitted: set[Requests] = set()

    @property
    def busy(self) -> int:
        """API requests in progress."""
        return self.running.total()

    @contextlib.contextmanager
    def admit(self, tenant: str) -> Iterator[None]:
        """Count an API request while it runs; refuse one above the limit of its key."""
        if self.draining:
            raise shutting_down()
        if tenant and self.running[tenant] >= self.limits.per_key:
            raise QueueFull(
                f"{self.limits.per_key} requests of this key are running already; "
                "wait for one to end"
            )
        self.running[tenant] += 1
        try:
            yield
        finally:
            self.running[tenant] -= 1
            self.running += Counter()  # drops tenants without a request

    @contextlib.contextmanager
    def submit(self, requests: Requests, receive: Receive) -> Iterator[None]:
        """Submit all requests of an API request, or none; they are cancelled on leaving.

        `receive` is called on this event loop, with steps from the engine's thread.
        """
        loop = asyncio.get_running_loop()

        def on_step(index: int) -> Callable[[Step | Exception | None], None]:
            def deliver(step: Step | Exception | None) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(receive, index, step)

            return deliver

        for index, request in enumerate(requests):
            request.on_step = on_step(index)
            request.on_prompt = partial(on_step(index), None)
        self.engine_thread.submit(requests)
        self._submitted.add(requests)
        try:
            yield
        finally:
            self._submitted.discard(requests)
            for request in requests:
                request.cancel()

    async def deltas(
        self, parsed: ParsedRequest, finished: Collection[int] = ()
    ) -> AsyncGenerator[ChoiceDelta]:
        """Deltas of all unfinished choices as they come; closing the generator cancels them."""
        arrived: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue()

        indexes = [index for index in range(len(parsed.requests)) if index not in finished]

        def receive(number: int, step: Step | Exception | None) -> None:
            index = indexes[number]
            if isinstance(step, Exception):
                arrived.put_nowait(step)
            elif step is None:
                arrived.put_nowait(ChoiceDelta(index, "", finish="length"))
            else:  # a delta has no tree, so that a slow client holds none
                arrived.put_nowait(delta_of(parsed, index, step))

        unfinished = len(indexes)
        if not unfinished:
            return
        deadline = asyncio.get_running_loop().time() + self.limits.request_seconds
        requests = tuple(parsed.requests[index] for index in indexes)
        with self.submit(requests, receive):
            while unfinished:
                try:
                    async with asyncio.timeout_at(deadline):
                        delta = await arrived.get()
                except TimeoutError as error:
                    raise self.too_long() from error
                if isinstance(delta, Exception):
                    raise delta
                unfinished -= delta.finish is not None
                yield delta

    async def finish_prompts(self, requests: Requests, deadline: float) -> None:
        """Wait for requests that end with their prompts; they are cancelled when one fails."""
        arrived: asyncio.Queue[Step | Exception | None] = asyncio.Queue()
        with self.submit(requests, lambda _, step: arrived.put_nowait(step)):
            for _ in requests:
                try:
                    async with asyncio.timeout_at(deadline):
                        step = await arrived.get()
                except TimeoutError as error:
                    raise self.too_long() from error
                if isinstance(step, Exception):
                    raise step

    def too_long(self) -> RequestTimeout:
        """The error of a request that takes too long."""
        return RequestTimeout(
            f"the request took longer than {self.limits.request_seconds:g} s; ask for less"
        )

    def abort(self) -> None:
        """Fail all requests that are still running."""
        for requests in list(self._submitted):
            for request in requests:
                request.on_step(shutting_down())


def shutting_down() -> ApiError:
    """The error of requests that arrive while the server shuts down."""
    return ApiError(503, "the server is shutting down; try again soon", headers=SOON)
