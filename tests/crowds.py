"""What tests of the scheduler share: a clock that follows a cost curve, tickets without an event loop."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.backends.toy import Toy
from sapwood.completion import Step
from sapwood.cost import CostCurve
from sapwood.engine import Engine
from sapwood.output import steps
from sapwood.protocols import Backend, Chunk, Scores, Work
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.sampling import Sampling
from sapwood.serve.crowd import Crowd
from sapwood.serve.jobs import Job, Ticket
from sapwood.serve.rounds import Round
from sapwood.serve.scheduler import Scheduler
from sapwood.serve.tenants import Engines


class Loop:
    """An event loop that does at once what it is told."""

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, call: Any, *arguments: Any) -> None:
        call(*arguments)


@dataclass
class Timed(Toy):
    """A toy whose passes take the seconds of a cost curve, and that remembers their shape."""

    curve: CostCurve = field(default_factory=lambda: CostCurve([1, 1024], [0], [[1.0, 1.0]]), compare=False)
    time: list[float] = field(default_factory=lambda: [0.0], compare=False)
    shapes: list[tuple[int, int, int]] = field(default_factory=list, compare=False)  # trees, their rows, rows read

    def now(self) -> float:
        return self.time[0]

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        found = super().score(work, chunks)
        rows, read = sum(len(job.tree) for job in work), sum(len(chunk.tokens) for chunk in chunks)
        self.shapes.append((len(work), rows, read))
        self.time[0] += self.curve.seconds(rows + read, 0, max(len(work), 1))
        return found


def copy_of(curve: CostCurve) -> CostCurve:
    """The same curve, to be refined apart."""
    return CostCurve.from_json(curve.to_json())


class Stage:
    """A scheduler over one backend, with jobs given as prompts."""

    def __init__(
        self,
        target: Backend,
        recipe: str | Recipe = "plain",
        cost: CostCurve | None = None,
        now: Any = None,
        **options: Any,
    ) -> None:
        self.target, self.recipe = target, recipe
        self.cost = cost or CostCurve([1, 1024], [0], [[1.0, 1.0]])
        self.now = now or (target.now if isinstance(target, Timed) else itertools.count().__next__)
        self.built = 0
        self.crowd = Crowd(target, Engines(self.build), now=lambda: float(self.now()))
        self.scheduler = Scheduler(self.crowd, self.cost, now=lambda: float(self.now()), **options)
        self.tickets: list[Ticket] = []
        self.rounds: list[Round] = []

    def build(self, recipe: str) -> Engine:
        self.built += 1
        return Engine(self.target, resolve(recipe or self.recipe), self.cost, now=lambda: float(self.now()))

    def ask(self, prompt: Sequence[int], sampling: Sampling | None = None, **options: Any) -> Ticket:
        """Submit a job; options are those of a job."""
        job = Job(tuple(prompt), sampling or Sampling(max_tokens=12), **options)
        loop: Any = Loop()
        ticket = Ticket(job, len(self.tickets), loop, submitted=float(self.now()))
        self.tickets.append(ticket)
        self.crowd.add(ticket)
        return ticket

    def run(self, most: int = 10_000) -> list[Round]:
        """Rounds until nobody is left."""
        found: list[Round] = []
        while not self.crowd.idle and len(found) < most:
            told = self.scheduler.round()
            if told is not None:
                found.append(told)
        self.rounds += found
        return found


def heard(ticket: Ticket) -> list[Step | Exception]:
    """All that a ticket was given so far."""
    found = []
    while not ticket.steps.empty():
        found.append(ticket.steps.get_nowait())
    for item in found:
        ticket.steps.put_nowait(item)
    return found


def ended(ticket: Ticket) -> bool:
    """True when a ticket was given its last step."""
    got = heard(ticket)
    return bool(got) and isinstance(got[-1], Step) and got[-1].done


def said(ticket: Ticket) -> list[int]:
    """The tokens of a finished ticket."""
    got = heard(ticket)
    for item in got:
        if isinstance(item, Exception):
            raise item
    assert isinstance(got[-1], Step)
    assert got[-1].done
    return [token for step in got if isinstance(step, Step) for token in step.tokens]


def failure(ticket: Ticket) -> Exception:
    """Why a ticket came to nothing."""
    last = heard(ticket)[-1]
    assert isinstance(last, Exception)
    return last


def alone(target: Backend, recipe: str | Recipe, prompt: Sequence[int], sampling: Sampling) -> list[int]:
    """What the engine says to one request, without a scheduler."""
    engine = Engine(target, resolve(recipe), CostCurve([1, 1024], [0], [[1.0, 1.0]]), now=lambda: 0.0)
    return [token for step in steps(engine, prompt, sampling, None, measured=False) for token in step.tokens]
