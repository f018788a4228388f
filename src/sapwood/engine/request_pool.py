"""All requests of a scheduler: waiting, prefilling and running; admission and preemption."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sapwood.core.protocols import Backend
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.input_processor import fitting
from sapwood.engine.output_processor import StepBuilder, within
from sapwood.engine.prefill import Prefill
from sapwood.engine.request import Request, RequestState, RequestTimeout
from sapwood.engine.wait_queue import WaitQueue
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer

LOG = logging.getLogger("sapwood.engine")


@dataclass
class RequestPool:
    """Requests by state, and the memory they hold."""

    target: Backend
    engines: EngineCache
    tokenizer: Tokenizer | None = None
    measured: bool = True  # the cost model was measured on this machine
    now: Callable[[], float] = time.monotonic  # clock of `Request.submitted`
    prefill_at_once: bool = False  # prefill a request that is alone without chunks
    begin_together: bool = False  # no request decodes before all prefills are done
    waiting: WaitQueue = field(default_factory=WaitQueue)
    prefills: list[Prefill] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    preemptions: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def active(self) -> int:
        """Requests that hold memory."""
        return len(self.running) + sum(len(prefill.requests) for prefill in self.prefills)

    @property
    def idle(self) -> bool:
        """True when there is no request."""
        return self.waiting.empty and not self.running and not self.prefills

    # ------------------------------------------------------------------------------- joining
    def room(self) -> int:
        """Most tokens of a prompt and its output together."""
        memory = self.target.memory
        context = self.target.info.context
        return context if memory.blocks is None else min(context, memory.blocks * memory.block)

    def check(self, request: Request) -> None:
        """Refuse a request that does not fit into context and memory."""
        fitting(list(request.prompt), self.target.info)
        if len(request.prompt) >= self.room():
            raise SapwoodError(
                f"the prompt has {len(request.prompt)} tokens, but memory holds {self.room()} "
                "with the answer; shorten it"
            )

    def add(self, request: Request) -> None:
        """Queue a request; it joins a prefill of the same prompt when there is one."""
        request.number = next(self._numbers)
        try:
            self.check(request)
            engine = self.engines.get(request.tenant, request.recipe)
            sampling = within(request.sampling, self.room() - len(request.prompt))
            builder = StepBuilder(
                engine,
                request.prompt,
                sampling,
                self.tokenizer,
                measured=self.measured,
                shown=request.shown_tokens,
            )
            if request.resumed is not None:
                builder.resume(request.output_tokens, request.resumed)
        except Exception as error:
            request.finish(error)
            return
        request.bind(engine, sampling, builder)
        every = (*self.prefills, *self.waiting)
        twin = next((prefill for prefill in every if prefill.serves(request)), None)
        if twin is None:
            self.waiting.add(Prefill([request]))
            return
        twin.requests.append(request)
        if twin.session is not None:
            request.start(self.now(), twin.session.length)

    def admit(self, most: int, in_time: Callable[[int], bool]) -> None:
        """Start prefills of waiting requests, up to `most` in all, as memory and time allow."""
        memory = self.target.memory
        while (prefill := self.waiting.first()) is not None and self.active < most:
            # each request that holds memory may soon need one more block
            promised = sum(other.left for other in self.prefills) + memory.block * (self.active + 1)
            fits = memory.fits(len(prefill.tokens) + promised)
            if self.active and not (fits and in_time(self.active + 1)):
                return
            self.waiting.take(prefill)
            alone = self.prefill_at_once and not self.active and self.waiting.empty
            try:
                prefill.start(self.target, self.now(), at_once=alone)
            except Exception as error:
                self._fail(prefill, error)
            else:
                self.prefills.append(prefill)

    def begin(self) -> None:
        """Start decoding the requests whose prefill is done."""
        if self.begin_together and (
            not self.waiting.empty or any(prefill.left for prefill in self.prefills)
        ):
            return
        for prefill in [prefill for prefill in self.prefills if not prefill.left]:
            self.prefills.remove(prefill)
            try:
                sessions = prefill.share()
            except OutOfMemory:  # for the forks: each request gets a prefill of its own
                for request in prefill.requests:
                    request.wait()
                    self.waiting.put_back(Prefill([request]))
                continue
            for request, session in zip(prefill.requests, sessions, strict=True):
                if request.prompt_only:
                    session.close()
                    request.finish()
                    request.on_prompt()
                    continue
                try:
                    request.begin(session)
                except Exception as error:
                    self.finish(request, error)
                else:
                    self.running.append(request)

    # ------------------------------------------------------------------------------- leaving
    def sweep(self) -> None:
        """Free cancelled requests and those past their timeout."""
        now = self.now()
        for request in [one for one in self.running if self._over(one, now)]:
            self.finish(request)
        if self.waiting.empty and not self.prefills:
            return
        for prefill in [*self.prefills, *self.waiting]:
            stay = [request for request in prefill.requests if not self._over(request, now)]
            if not stay:
                self.end_prefill(prefill)
            for request in prefill.requests:
                if request not in stay:
                    request.state = RequestState.FINISHED
            prefill.requests[:] = stay or prefill.requests

    def _over(self, request: Request, now: float) -> bool:
        if request.cancelled.is_set():
            return True
        late = now - request.submitted > request.timeout
        if late:
            request.on_step(
                RequestTimeout(f"the request took longer than {request.timeout:g} s; ask for less")
            )
        return late

    def finish(self, request: Request, error: Exception | None = None) -> None:
        """Free a request's memory; an error is passed to its `on_step`."""
        if request in self.running:
            self.running.remove(request)
        try:
            request.finish(error)
        except Exception:  # raised by a part; the memory is freed all the same
            LOG.exception("a part failed when its request was closed")

    def end_prefill(self, prefill: Prefill, error: Exception | None = None) -> None:
        """End a prefill; an error is passed to `on_step` of its requests."""
        if prefill in self.prefills:
            self.prefills.remove(prefill)
        else:
            self.waiting.take(prefill)
        prefill.close()
        if error is not None:
            self._fail(prefill, error)

    def _fail(self, prefill: Prefill, error: Exception) -> None:
        for request in prefill.requests:
            request.finish(error)

    def close(self, error: Exception) -> None:
        """End all requests with this error."""
        for request in list(self.running):
            self.finish(request, error)
        for prefill in [*self.prefills, *self.waiting]:
            self.end_prefill(prefill, error)

    # ------------------------------------------------------------------------------- preemption
    def youngest(self) -> Request | Prefill:
        """The newest request or prefill: the first to be preempted."""
        held: Sequence[Request | Prefill] = (*self.running, *self.prefills)
        return max(held, key=lambda one: one.number)

    def preempt(self, one: Request | Prefill) -> None:
        """Free the memory of a request or a prefill; it waits at the front of the queue."""
        self.preemptions += 1
        if isinstance(one, Prefill):
            self.prefills.remove(one)
            one.close()
            requests = one.requests
        else:
            if one in self.running:
                self.running.remove(one)
            requests = [one]
        for request in requests:
            try:
                request.wait()
            except Exception:  # raised by a part; the memory is freed all the same
                LOG.exception("a part failed when its request was preempted")
        self.waiting.put_back(one if isinstance(one, Prefill) else Prefill([one]))
