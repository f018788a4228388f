"""Requests that arrive at given times, more of them in every phase, whatever is still running.

Clients of `clients.py` wait for their answers, so a slow server is asked less. Here the rate of
arrivals doubles from phase to phase: a server that cannot follow falls behind, and the phases show
until when its time per token stays within a deadline.
"""

import math
import time
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


class OwnClock:
    """Seconds of one runner's own work: it stands still while others work, and skips idle time.

    So runners that take turns, one step each, meet the same noise of the machine, and a phase in
    which little arrives takes no longer than its work.
    """

    def __init__(self, source: Callable[[], float] = time.perf_counter) -> None:
        self.source = source
        self.spent = 0.0  # and skipped, before the present turn
        self.since: float | None = None  # the source's time at the start of the present turn

    def __call__(self) -> float:
        """Seconds so far."""
        return self.spent + (0.0 if self.since is None else self.source() - self.since)

    def skip(self, seconds: float) -> None:
        """Let idle time pass."""
        self.spent += seconds

    def run(self, work: Callable[[], bool]) -> bool:
        """Work for one turn."""
        self.since = self.source()
        try:
            return work()
        finally:
            self.spent, self.since = self(), None


@dataclass
class ArrivalRun:
    """One scheduler under arrivals, on its own clock."""

    scheduler: Scheduler
    load: Doubling
    skip: Callable[[float], None]  # lets so many idle seconds of the scheduler's clock pass
    prompts: Sequence[Sequence[int]]  # of the requests, in turns
    sampling: Sampling
    tenant: str = ""
    served: list[ServedRequest] = field(default_factory=list)
    steps: list[tuple[float, float, int, int]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coming = self.load.times
        self.start = self.scheduler.now()

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self.scheduler.now() - self.start

    def run(self) -> list[Phase]:
        """All phases."""
        while self.advance():
            pass
        return self.phases()

    def advance(self) -> bool:
        """Submit what has arrived and make one step; False after the last phase."""
        at = self.time
        if at >= self.load.seconds * self.load.phases:
            return False
        while len(self.requests) < len(self.coming) and self.coming[len(self.requests)] <= at:
            self._submit()
        done = self.scheduler.step()
        if done is not None:
            self.steps.append((self.time, self.time - at, done.trees, done.nodes))
            return True
        if len(self.requests) == len(self.coming):
            return False
        self.skip(max(self.coming[len(self.requests)] - self.time, 0.0))
        return True

    def phases(self) -> list[Phase]:
        """Numbers of each phase; requests that are still running are cancelled."""
        for request in self.requests:
            request.cancel()
        self.scheduler.pool.sweep()
        return [self.numbers(phase) for phase in range(self.load.phases)]

    def _submit(self) -> None:
        """Add one request."""
        served = ServedRequest()
        prompt = self.prompts[len(self.requests) % len(self.prompts)]
        request = Request(tuple(prompt), self.sampling, self.tenant)
        request.on_step = partial(self._take, served)
        self.served.append(served)
        self.requests.append(request)
        self.scheduler.pool.add(request)

    def _take(self, served: ServedRequest, step: Step | Exception) -> None:
        """Keep the time of a step."""
        if isinstance(step, Exception):
            raise step
        served.times.append(self.time)
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
            for at, count in zip(one.times, one.counts, strict=True)
            if self.load.phase(at) == phase
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


def in_turns(runs: Sequence[tuple[OwnClock, ArrivalRun]]) -> list[list[Phase]]:
    """All phases of several runs: the one whose clock is behind makes the next step."""
    left = list(runs)
    while left:
        clock, run = min(left, key=lambda pair: pair[1].time)
        if not clock.run(run.advance):
            left.remove((clock, run))
    return [run.phases() for _, run in runs]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 without values."""
    return float(np.mean(values)) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below this share of the values; inf without any."""
    return float(np.quantile(values, share, method="higher")) if values else math.inf
