"""Runs of several recipes whose steps take turns, so that noise of the machine treats them alike.

The recipe that has emitted the fewest tokens makes the next step. Seconds are those of the steps
themselves; steps that prefill a prompt are not counted, nor are their tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sapwood.core.sampling import Sampling
from sapwood.engine.generate import scheduler_of
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Completion, Step, collect
from sapwood.engine.request import Request
from sapwood.errors import SapwoodError
from sapwood.llm import LLM


@dataclass
class StepTotals:
    """Sums over counted steps."""

    tokens: int = 0
    passes: int = 0  # of each request
    nodes: int = 0  # checked by the target, roots not counted
    seconds: float = 0.0
    draft: float = 0.0  # of these, as is the next one
    verify: float = 0.0
    halves: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of every other step

    def add(self, steps: Sequence[Step], seconds: float, verify: float, turn: int) -> None:
        """Count one step of all requests that shared its pass."""
        outcomes = [step.outcome for step in steps]
        tokens = sum(len(step.pieces) for step in steps)
        self.tokens += tokens
        self.passes += len(steps)
        self.nodes += sum(len(outcome.tree) - 1 for outcome in outcomes)
        self.seconds += seconds
        self.draft += sum(outcome.times.draft for outcome in outcomes)
        self.verify += verify
        self.halves[turn % 2] += seconds / tokens

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


class OneRequest:
    """A request that is decoded alone."""

    def __init__(self, llm: LLM, prompt: list[int], tokens: int) -> None:
        self._stream = llm.stream(prompt, max_tokens=tokens)
        self._steps: list[Step] = []
        self.totals = StepTotals()
        self.emitted = 0

    @property
    def done(self) -> bool:
        """True after the last step."""
        return bool(self._steps) and self._steps[-1].done

    def advance(self) -> None:
        """One step."""
        start = time.perf_counter()
        step = next(self._stream)
        seconds = time.perf_counter() - start
        if self._steps:  # the first step has the prefill
            self.totals.add([step], seconds, step.outcome.times.verify, len(self._steps))
        if step.done:
            next(self._stream, None)  # keeps what was learned
        self._steps.append(step)
        self.emitted += len(step.pieces)

    def completion(self) -> Completion:
        """The whole answer."""
        return collect(self._steps)


class SteadyLoad:
    """So many requests at once: when one ends, the next prompt takes its place.

    The first ones are shorter, so that later ones do not begin together.
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[list[int]], requests: int, tokens: int
    ) -> None:
        self._scheduler = scheduler_of(engine, None, measured=True)
        self._prompts = prompts
        self._requests = requests
        self._sampling = Sampling(max_tokens=tokens)
        self._begun = 0
        self._steps = 0
        self.totals = StepTotals()
        self.emitted = 0

    def begin(self) -> None:
        """Begin new totals; requests go on."""
        self.totals = StepTotals()

    def advance(self) -> None:
        """One step of all requests."""
        self._fill()
        pool = self._scheduler.pool
        prefills = bool(pool.prefills) or not pool.waiting.empty
        start = time.perf_counter()
        done = self._scheduler.advance()
        seconds = time.perf_counter() - start
        if done is None:
            return
        steps = [step for _, step in done.steps]
        self.emitted += sum(len(step.pieces) for step in steps)
        if len(steps) == self._requests and not prefills:
            self._steps += 1
            self.totals.add(steps, seconds, done.seconds, self._steps)

    def _fill(self) -> None:
        """Add requests until there are enough."""
        pool = self._scheduler.pool
        while pool.active + len(pool.waiting) < self._requests:
            prompt = self._prompts[self._begun % len(self._prompts)]
            sampling = self._sampling
            if self._begun < self._requests:
                share = sampling.max_tokens * (self._begun + 1) // self._requests
                sampling = replace(sampling, max_tokens=max(share, 1))
            self._begun += 1
            pool.add(Request(tuple(prompt), sampling, on_step=self._check))

    @staticmethod
    def _check(step: Step | Exception) -> None:
        if isinstance(step, Exception):
            raise step

    def close(self) -> None:
        """End all requests."""
        pool = self._scheduler.pool
        for request in [*pool.running]:
            request.cancel()
        pool.sweep()


def decode_in_turns(llms: Sequence[LLM], prompt: list[int], tokens: int) -> list[OneRequest]:
    """Decode a prompt with each recipe; raises an error if their texts differ."""
    runs = [OneRequest(llm, prompt, tokens) for llm in llms]
    while going := [run for run in runs if not run.done]:
        min(going, key=lambda run: run.emitted).advance()
    texts = [run.completion().tokens for run in runs]
    if any(text != texts[0] for text in texts):
        raise SapwoodError("two recipes wrote different texts")
    return runs


def load_in_turns(runs: Sequence[SteadyLoad], tokens: int, over: Callable[[], bool]) -> bool:
    """Let all make so many tokens in counted steps; False if time was over before."""
    for run in runs:
        run.begin()
    while any(run.totals.tokens < tokens for run in runs):
        if over():
            return False
        min(runs, key=lambda run: run.emitted).advance()
    return True
