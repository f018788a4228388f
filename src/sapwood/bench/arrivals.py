"""Requests that arrive at given times, more of them in every phase, whatever is still running.

Clients of `clients.py` wait for their answers, so a slow server is asked less. Here the rate of
arrivals doubles from phase to phase: a server that cannot follow falls behind, and the phases show
until when its time per token stays within a deadline.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Phase:
    """Numbers of one phase; seconds are those of the scheduler's clock."""

    rate: float  # arrivals per second
    running: float  # requests in a pass, mean over passes
    tokens: int  # emitted in the phase
    busy: float  # seconds in which there was something to decode
    nodes: float  # of a pass, mean
    p50: float  # seconds between two steps of a request; inf without any
    p99: float
    per_token: float  # of a request that ended in the phase, p99 of its mean seconds per token

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second in which there was something to decode."""
        return self.tokens / self.busy if self.busy else 0.0


@dataclass
class Doubling:
    """Arrivals at even distances, whose rate doubles after every phase."""

    first: float  # arrivals per second of the first phase
    seconds: float  # of a phase
    phases: int

    @property
    def rates(self) -> list[float]:
        """Arrivals per second of each phase."""
        return [self.first * 2**phase for phase in range(self.phases)]

    @property
    def times(self) -> list[float]:
        """Seconds after the start at which requests arrive."""
        found = []
        for phase, rate in enumerate(self.rates):
            count = round(rate * self.seconds)
            found += [(phase + place / count) * self.seconds for place in range(count)]
        return found

    def phase(self, at: float) -> int:
        """The phase at so many seconds after the start; `phases` or more after the last one."""
        return math.floor(at / self.seconds)


@dataclass
class ServedRequest:
    """When the steps of one request came, in seconds after the start."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # tokens of each step
    done: bool = False


@dataclass
class ArrivalRun:
    """One scheduler under arrivals, on its own clock."""

    scheduler: Scheduler
    load: Doubling
    sleep: Callable[[float], None]  # waits so many seconds of the scheduler's clock
    tenant: str = ""
    served: list[ServedRequest] = field(default_factory=list)
    steps: list[tuple[float, float, int, int]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def run(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Phase]:
        """Submit prompts at their times, in turns; numbers of each phase."""
        now = self.scheduler.now
        start = now()
        coming = self.load.times
        end = self.load.seconds * self.load.phases
        while (at := now() - start) < end:
            while len(self.requests) < len(coming) and coming[len(self.requests)] <= at:
                self._submit(prompts[len(self.requests) % len(prompts)], sampling, start)
            done = self.scheduler.step()
            if done is not None:
                after = now() - start
                self.steps.append((after, after - at, done.trees, done.nodes))
            elif len(self.requests) < len(coming):
                self.sleep(coming[len(self.requests)] - at)
            else:
                break
        for request in self.requests:
            request.cancel()
        self.scheduler.pool.sweep()
        return [self.numbers(phase) for phase in range(self.load.phases)]

    def _submit(self, prompt: Sequence[int], sampling: Sampling, start: float) -> None:
        """Add one request."""
        served = ServedRequest()
        request = Request(tuple(prompt), sampling, self.tenant)
        request.on_step = partial(self._take, served, start)
        self.served.append(served)
        self.requests.append(request)
        self.scheduler.pool.add(request)

    def _take(self, served: ServedRequest, start: float, step: Step | Exception) -> None:
        """Keep the time of a step."""
        if isinstance(step, Exception):
            raise step
        served.times.append(self.scheduler.now() - start)
        served.counts.append(len(step.tokens))
        served.done = step.done

    def numbers(self, phase: int) -> Phase:
        """The numbers of one phase."""
        within = [step for step in self.steps if self.load.phase(step[0]) == phase]
        passes = [step for step in within if step[2]]
        gaps = [
            after - before
            for one in self.served
            for before, after in pairwise(one.times)
            if self.load.phase(after) == phase
        ]
        tokens = sum(
            count
            for one in self.served
            for time, count in zip(one.times, one.counts, strict=True)
            if self.load.phase(time) == phase
        )
        ended = [one for one in self.served if one.done and self.load.phase(one.times[-1]) == phase]
        means = [
            (one.times[-1] - one.times[0]) / sum(one.counts[1:])
            for one in ended
            if sum(one.counts[1:])
        ]
        return Phase(
            self.load.rates[phase],
            mean([float(step[2]) for step in passes]),
            tokens,
            sum(step[1] for step in within),
            mean([float(step[3]) for step in passes]),
            quantile(gaps, 0.5),
            quantile(gaps, 0.99),
            quantile(means, 0.99),
        )


def mean(values: Sequence[float]) -> float:
    """The mean; 0 without values."""
    return float(np.mean(values)) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below this share of the values; inf without any."""
    return float(np.quantile(values, share, method="higher")) if values else math.inf
