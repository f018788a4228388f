"""The thread that owns the model and runs the scheduler; any thread may submit requests."""

import dataclasses
import gc
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from sapwood.core.protocols import Backend
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step
from sapwood.engine.prelaunch import prepare_batches
from sapwood.engine.request import QueueFull, Request
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.scheduler import MAX_REQUESTS, Scheduler
from sapwood.engine.step_stats import EngineSnapshot, StepStats
from sapwood.engine.warmup import warm_up
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve

LOG = logging.getLogger("sapwood.server.engine")
MEMORY = 16384  # tokens of KV cache by default; more when one text may be longer
LONGEST = 65536  # largest default: tokens of KV cache
WARM_LEVELS = (1, 4, 16)  # requests at a time before the first one
SHUTTING_DOWN = "the server is shutting down; try again soon"


def default_memory(target: Backend, requests: int) -> int:
    """Tokens of KV cache: on a CPU one long text or a few, on a GPU as many as fit its memory."""
    context = target.info.context
    free_tokens = target.capabilities.free_tokens
    if free_tokens is None:
        return max(MEMORY, min(context, LONGEST))
    return max(MEMORY, min(free_tokens(), requests * context))


class EngineThread:
    """Runs the scheduler of one model on a thread of its own."""

    def __init__(
        self,
        llm: LLM,
        waiting: int = 256,  # requests that may wait
        *,
        max_requests: int = MAX_REQUESTS,  # that share a pass
        slo: float | None = None,  # seconds that a pass should not exceed
        memory: int | None = None,  # tokens of KV cache
    ) -> None:
        self.llm = llm
        self.draining = False  # no new requests are accepted
        # called on this thread, with every step of a request and once per scheduler step
        self.watchers: list[Callable[[Request, Step], None]] = []
        self.step_watchers: list[Callable[[StepStats], None]] = []
        self._waiting = waiting
        self._inbox: queue.SimpleQueue[list[Request]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ending = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._in_inbox = 0  # requests
        self._ended = False  # the thread takes no more requests
        llm.target.memory.limit(memory or default_memory(llm.target, max_requests))
        self.pool = RequestPool(
            llm.target, EngineCache(self._engine), llm.text, llm.profile.measured
        )
        self.scheduler = Scheduler(
            self.pool, llm.profile.curve, max_requests, slo, watch=self._watch
        )
        self._last = self.scheduler.snapshot()

    def _engine(self, recipe: str) -> Engine:
        """An engine of a named recipe, or of the server's default one."""
        return self.llm.bind(resolve(recipe) if recipe else resolve(self.llm.recipe))

    # ------------------------------------------------------------------------------- any thread
    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none; they may come from any thread."""
        if self.draining:
            raise QueueFull(SHUTTING_DOWN)
        if self._in_inbox + self._last.waiting >= self._waiting:
            raise QueueFull(f"{self._waiting} requests are waiting already; try again later")
        for request in requests:
            if request.recipe:
                resolve(request.recipe)  # a misspelt recipe fails at once
            self.pool.check(request)
            request.wake = self._wake
        with self._lock:
            if self._ended:
                raise QueueFull(SHUTTING_DOWN)
            self._in_inbox += len(requests)
            self._idle.clear()
            self._inbox.put(list(requests))

    def snapshot(self) -> EngineSnapshot:
        """The state after the last step."""
        return dataclasses.replace(
            self._last, waiting=self._last.waiting + self._in_inbox, draining=self.draining
        )

    def drain(self, seconds: float | None = None) -> bool:
        """Accept no new requests and wait for running ones; False when the time is over."""
        self.draining = True
        return self._idle.wait(seconds)

    def stop(self, seconds: float | None = None) -> None:
        """Drain for at most this many seconds, then end the thread."""
        self.drain(seconds)
        self._ending.set()
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        self._inbox.put([])

    # ------------------------------------------------------------------------------- this thread
    def _run(self) -> None:
        self.llm.profile.widen(self.llm.target, self.llm.progress)
        self._prepare()
        while not self._ending.is_set():
            self._receive()
            try:
                self._step()
            except Exception as error:  # the thread must outlive every request
                LOG.exception("a step failed as a whole")
                self.pool.close(error)
            self._last = self.scheduler.snapshot()
            with self._lock:
                if self.pool.idle and not self._in_inbox:
                    self._idle.set()
        with self._lock:
            self._ended = True
        self._take_inbox()  # requests that came after the last step are refused, not forgotten
        self.pool.close(SapwoodError(SHUTTING_DOWN))
        gc.unfreeze()  # what is still frozen at the exit counts as leaked

    def _prepare(self) -> None:
        """Prepare the device for the default recipe and for batches, before the first request."""
        prepare = self.llm.target.capabilities.prepare_batches
        if prepare is not None:
            engine = self.pool.engines.get("", "")  # its drafters say which states a pass keeps
            prepare_batches(engine.recipe, self.scheduler.max_requests)
            prepare(self.scheduler.max_requests, self.llm.progress)
            if self.llm.text is not None and self.llm.target.info.device != "cpu":
                warm_up(self.scheduler, self.llm.text.encode, WARM_LEVELS, self.llm.progress)
        gc.collect()
        gc.freeze()  # a collection need not look at the model's objects in every few rounds

    def _receive(self) -> None:
        """Add submitted requests to the pool; wait for one when the pool is empty."""
        if self.pool.idle:
            self._add(self._inbox.get())
        self._take_inbox()

    def _take_inbox(self) -> None:
        """Add all requests that were submitted up to now."""
        while not self._inbox.empty():
            self._add(self._inbox.get())

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.pool.add(request)
        with self._lock:
            self._in_inbox -= len(requests)

    def _step(self) -> None:
        stats = self.scheduler.step()
        if stats is None:
            return
        for watcher in self.step_watchers:
            try:
                watcher(stats)
            except Exception:
                LOG.exception("a watcher of scheduler steps failed")
        self.llm.profile.keep()

    def _watch(self, request: Request, step: Step) -> None:
        for watcher in self.watchers:
            try:
                watcher(request, step)
            except Exception:
                LOG.exception("a watcher of requests failed")
