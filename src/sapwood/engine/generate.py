"""Runs a scheduler in the caller's thread: one request step by step, or many to their end."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.loop import Engine
from sapwood.engine.output_processor import StepBuilder
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.scheduler import Scheduler
from sapwood.tokenizer.tokenizer import Tokenizer

OnStep = Callable[[int, Step], None]  # called with the index of a prompt and its step


def scheduler_of(
    engine: Engine, tokenizer: Tokenizer | None, *, measured: bool, begin_together: bool = False
) -> Scheduler:
    """A scheduler for one engine that all requests share."""
    pool = RequestPool(
        engine.target,
        EngineCache(lambda _: engine),
        tokenizer,
        measured,
        prefill_at_once=True,
        begin_together=begin_together,
    )
    return Scheduler(pool, engine.cost, now=engine.now)


def stream(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling,
    tokenizer: Tokenizer | None = None,
    *,
    measured: bool = False,
    on_end: Callable[[], None] = lambda: None,  # called after the last step
) -> Generator[Step]:
    """Decode one request; the caller's time between two steps is not counted."""
    if engine.decodes_alone(sampling):
        yield from overlapped(engine, prompt, sampling, tokenizer, measured=measured)
        on_end()
        return
    steps: list[Step | Exception] = []
    request = Request(tuple(prompt), sampling, on_step=steps.append)
    scheduler = scheduler_of(engine, tokenizer, measured=measured)
    scheduler.pool.add(request)
    try:
        while not request.finished or steps:
            if not steps:
                request.resume()
                scheduler.advance()
                continue
            step = steps.pop()
            if isinstance(step, Exception):
                raise step
            yield step
        on_end()
    finally:
        request.cancel()
        scheduler.pool.sweep()


def overlapped(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling,
    tokenizer: Tokenizer | None,
    *,
    measured: bool,
) -> Generator[Step]:
    """Decode one request alone: with drafts beside its passes, or over the stages of a pipeline."""
    builder = StepBuilder(engine, prompt, sampling, tokenizer, measured=measured)
    start = engine.now()
    first = True
    with closing(engine.rounds(prompt, sampling, KeyedRng(sampling.seed))) as outcomes:
        for outcome in outcomes:
            step = builder.step(outcome, start, first=first)
            yield step
            if step.done:
                return
            first = False
            start = engine.now()


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | Sequence[Sampling],
    on_step: OnStep,
    tokenizer: Tokenizer | None = None,
    *,
    measured: bool = False,
    begin_together: bool = False,  # no output before all prompts are prefilled
) -> None:
    """Decode many requests in shared passes, until the last of them has ended."""
    own = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    errors: list[Exception] = []

    def receiver(index: int) -> Callable[[Step | Exception], None]:
        def receive(step: Step | Exception) -> None:
            if isinstance(step, Exception):
                errors.append(step)
            else:
                on_step(index, step)

        return receive

    scheduler = scheduler_of(engine, tokenizer, measured=measured, begin_together=begin_together)
    for index, (prompt, options) in enumerate(zip(prompts, own, strict=True)):
        scheduler.pool.add(Request(tuple(prompt), options, on_step=receiver(index)))
    try:
        while not scheduler.pool.idle and not errors:
            scheduler.advance()
        if errors:
            raise errors[0]
    finally:
        scheduler.pool.close(RuntimeError("another request failed"))
