"""A scheduler over one backend, with a clock that follows a cost model, for tests."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Backend, PrefillChunk, TargetOutput, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.engine.cost_model import CostModel
from sapwood.engine.engine_cache import EngineCache
from sapwood.engine.generate import stream
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.scheduler import Scheduler
from sapwood.engine.step_stats import StepStats
from sapwood.recipe import Recipe
from sapwood.recipes import resolve


@dataclass
class Timed(ToyBackend):
    """A toy whose passes take the seconds of a cost curve, and that remembers their shape."""

    curve: CostModel = field(
        default_factory=lambda: CostModel([1, 1024], [0], [[1.0, 1.0]]), compare=False
    )
    time: list[float] = field(default_factory=lambda: [0.0], compare=False)
    shapes: list[tuple[int, int, int]] = field(
        default_factory=list, compare=False
    )  # trees, their rows, rows read

    def now(self) -> float:
        return self.time[0]

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        found = super().score(work, chunks)
        rows = sum(len(job.tree) for job in work)
        read = sum(len(chunk.tokens) for chunk in chunks)
        self.shapes.append((len(work), rows, read))
        self.time[0] += self.curve.seconds(rows + read, 0, max(len(work), 1))
        return found


def copy_of(curve: CostModel) -> CostModel:
    """The same curve, to be refined apart."""
    return CostModel.from_json(curve.to_json())


class Stage:
    """A scheduler over one backend, with requests given as prompts."""

    def __init__(
        self,
        target: Backend,
        recipe: str | Recipe = "plain",
        cost: CostModel | None = None,
        now: Any = None,
        **options: Any,
    ) -> None:
        self.target = target
        self.recipe = recipe
        self.cost = cost or CostModel([1, 1024], [0], [[1.0, 1.0]])
        self.now = now or (target.now if isinstance(target, Timed) else itertools.count().__next__)
        self.built = 0
        self.pool = RequestPool(target, EngineCache(self.build), now=lambda: float(self.now()))
        self.scheduler = Scheduler(self.pool, self.cost, now=lambda: float(self.now()), **options)
        self.requests: list[Request] = []
        self.steps: dict[Request, list[Step | Exception]] = {}
        self.rounds: list[StepStats] = []

    def build(self, recipe: str) -> Engine:
        self.built += 1
        return Engine(
            self.target, resolve(recipe or self.recipe), self.cost, now=lambda: float(self.now())
        )

    def ask(
        self, prompt: Sequence[int], sampling: Sampling | None = None, **options: Any
    ) -> Request:
        """Submit a request; options are its fields."""
        request = Request(
            tuple(prompt),
            sampling or Sampling(max_tokens=12),
            submitted=float(self.now()),
            **options,
        )
        self.steps[request] = []
        request.on_step = self.steps[request].append
        self.requests.append(request)
        self.pool.add(request)
        return request

    def run(self, most: int = 10_000) -> list[StepStats]:
        """Rounds until nobody is left."""
        found: list[StepStats] = []
        while not self.pool.idle and len(found) < most:
            told = self.scheduler.step()
            if told is not None:
                found.append(told)
        self.rounds += found
        return found


def ended(steps: Sequence[Step | Exception]) -> bool:
    """True when the last step of a request has come."""
    return bool(steps) and isinstance(steps[-1], Step) and steps[-1].done


def tokens_of(steps: Sequence[Step | Exception]) -> list[int]:
    """The tokens of a finished request."""
    for item in steps:
        if isinstance(item, Exception):
            raise item
    assert ended(steps)
    return [token for step in steps if isinstance(step, Step) for token in step.tokens]


def failure(steps: Sequence[Step | Exception]) -> Exception:
    """The error that a request ended with."""
    last = steps[-1]
    assert isinstance(last, Exception)
    return last


def alone(
    target: Backend, recipe: str | Recipe, prompt: Sequence[int], sampling: Sampling
) -> list[int]:
    """The tokens that the engine gives one request by itself."""
    engine = Engine(
        target, resolve(recipe), CostModel([1, 1024], [0], [[1.0, 1.0]]), now=lambda: 0.0
    )
    return [token for step in stream(engine, prompt, sampling) for token in step.tokens]
