"""One request: its options, its state and its callback.

The same object goes from the caller (the HTTP server, `LLM`, `bench`) through the scheduler.
"""

import enum
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.core.protocols import Session, TargetOutput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome, SharedPass
from sapwood.engine.loop import Engine
from sapwood.engine.output_processor import StatsCounter, StepBuilder
from sapwood.engine.outputs import Step
from sapwood.engine.prompt_scores import PromptReader
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError


class QueueFull(SapwoodError):
    """The queue is full; the same request may succeed later."""


class RequestTimeout(SapwoodError):
    """The request took longer than its timeout."""


class RequestState(enum.Enum):
    """State of a request; preemption leads back from RUNNING or PREFILL to WAITING."""

    WAITING = "waiting"  # for memory
    PREFILL = "prefill"  # its prompt is in prefill
    RUNNING = "running"  # its output is being decoded
    FINISHED = "finished"  # ended, failed or cancelled


def ignore(step: Step | Exception) -> None:
    """Drop a step: the default of `Request.on_step`."""


def no_wake() -> None:
    """Do nothing: the default of `Request.wake` and `Request.on_prompt`."""


@dataclass(eq=False)
class Request:
    """A prompt to continue, from submission to its last token."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tenant: str = ""  # requests of one tenant share drafter memory and cached prefixes
    recipe: str = ""  # a name or spelling; empty is the engine's default
    timeout: float = math.inf  # seconds from submission to the last token
    on_step: Callable[[Step | Exception], None] = ignore  # called on the scheduler's thread
    submitted: float = field(default_factory=time.monotonic)
    shown_tokens: frozenset[int] = frozenset()  # special tokens that stand in the text
    prompt_reader: PromptReader | None = None  # of scores of the prompt's own tokens
    prompt_only: bool = False  # ends when its prompt has been prefilled or scored
    on_prompt: Callable[[], None] = no_wake  # called then, on the scheduler's thread
    resumed: StatsCounter | None = None  # statistics of the server that began it elsewhere
    wake: Callable[[], None] = no_wake  # wakes the scheduler's thread after a cancellation
    cancelled: threading.Event = field(default_factory=threading.Event)
    # set by the scheduler's thread alone; a resumed request comes with its `output_tokens`
    number: int = 0  # order of arrival: the smaller, the older
    state: RequestState = RequestState.WAITING
    started: float | None = None  # when it was first given memory, on the clock of `submitted`
    output_tokens: list[int] = field(default_factory=list)
    nodes: int = 0  # of its last tree, the root not counted
    priced: bool = False  # its controller prices nodes by measured seconds
    decoder: RequestDecoder | None = None  # while it is RUNNING
    _engine: Engine | None = None
    _builder: StepBuilder | None = None
    _since: float = 0.0  # engine clock at its last step, or at the start of its prefill

    # ------------------------------------------------------------------------------- the caller
    def cancel(self) -> None:
        """Stop the request; its memory is freed before the next step."""
        self.cancelled.set()
        self.wake()

    @property
    def finished(self) -> bool:
        """True after its last step, or its error."""
        return self.state is RequestState.FINISHED

    def resume(self) -> None:
        """Leave the time since the last step out of the request's statistics."""
        if self._since and self._engine is not None:
            self._since = self._engine.now()

    # ------------------------------------------------------------------------------- the scheduler
    def bind(self, engine: Engine, sampling: Sampling, builder: StepBuilder) -> None:
        """Set the engine that decodes it, and its sampling as far as memory allows."""
        self._engine = engine
        self.priced = engine.recipe.controller.priced
        self.sampling = sampling
        self._builder = builder

    @property
    def engine(self) -> Engine:
        """The engine that decodes it."""
        assert self._engine is not None
        return self._engine

    @property
    def running(self) -> RequestDecoder:
        """The decoder of a RUNNING request."""
        assert self.decoder is not None
        return self.decoder

    def start(self, now: float, cached: int) -> None:
        """Begin its prefill at `now` (clock of `submitted`), with this many cached tokens."""
        self.state = RequestState.PREFILL
        if self.started is None:
            self.started = now
            self._since = self.engine.now()
            assert self._builder is not None
            self._builder.stats.cached_tokens = min(cached, len(self.prompt))

    def begin(self, session: Session) -> None:
        """Begin decoding from a session that holds all tokens but the last."""
        rng = KeyedRng(self.sampling.seed)
        self.decoder = RequestDecoder(
            self.engine, self.prompt, self.sampling, rng, session, self.output_tokens
        )
        self.state = RequestState.RUNNING

    def verify(self, output: TargetOutput, shared: SharedPass | None) -> Step:
        """Verify its scored tree; the step holds the tokens that were added."""
        return self._step(self.running.finish_round(output, shared))

    def take_root(self, outcome: Outcome) -> Step:
        """Take the token of a root that a launched pass has committed."""
        self.running.finish_root(outcome)
        return self._step(outcome)

    def take_round(self, outcome: Outcome, ended: bool, learn: bool) -> Step:
        """Take the tokens of a round that a device has run; see `finish_device_round`."""
        self.running.finish_device_round(outcome, ended=ended, learn=learn)
        return self._step(outcome)

    def _step(self, outcome: Outcome) -> Step:
        assert self._builder is not None
        step = self._builder.step(outcome, self._since, first=not self.output_tokens)
        self._since = self.engine.now()
        self.output_tokens += outcome.tokens
        self.nodes = len(outcome.tree) - 1
        return step

    def wait(self) -> None:
        """Free the memory of a preempted request and wait again."""
        self._close()
        self.state = RequestState.WAITING

    def finish(self, error: Exception | None = None) -> None:
        """Free its memory; an error is passed to `on_step`."""
        self.state = RequestState.FINISHED
        try:
            self._close()
        finally:
            if error is not None:
                self.on_step(error)

    def _close(self) -> None:
        decoder, self.decoder = self.decoder, None
        if decoder is not None:
            decoder.close()
