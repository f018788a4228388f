"""Several requests that share every pass, as the server would have them: one node budget for all of their trees.

Each request keeps its own text, its own seed and its own parts; the seconds of a pass are split evenly among those
who were in it, so that the sum over requests is the time on the wall. All begin together, once their prompts are read.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from sapwood.bench.measure import Run, cut
from sapwood.controllers.ledger import ledgers
from sapwood.engine import Decoding, Engine
from sapwood.protocols import Scores
from sapwood.records import Joint, Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.serve.batch import Batch
from sapwood.tree import CAPACITY


@dataclass(frozen=True)
class Told:
    """What a round gave one request."""

    outcome: Outcome


@dataclass(eq=False)
class Seat:
    """One request among those who share the passes; to the server's batch it is an answer under way."""

    engine: Engine
    running: Decoding
    sampling: Sampling
    run: Run = field(default_factory=Run)
    nodes: int = 0  # of its last tree
    over: bool = False

    @property
    def priced(self) -> bool:
        """True when its controller counts seconds."""
        return getattr(self.engine.recipe.controller, "priced", False)

    def take(self, scores: Scores, joint: Joint | None) -> Told:
        """Judge the scored tree."""
        outcome = self.running.judge(scores, joint)
        ends, self.nodes = frozenset(self.sampling.stop_ids), len(outcome.tree) - 1
        tokens = cut(outcome.tokens, ends)
        self.run.count(outcome, tokens, self.engine.cost)
        self.over = tokens[-1] in ends or len(self.run.tokens) >= self.sampling.max_tokens or self.running.full
        return Told(outcome)


def decode_together(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, *, measured: bool = False
) -> list[Run]:
    """Decode all prompts, one tree of each in every pass, until the last of them has ended.

    `measured` says that the engine's cost curve means seconds of this machine.
    """
    with ExitStack() as stack:
        seats = []
        for prompt in prompts:
            start = engine.now()
            fitted = replace(sampling, max_tokens=min(sampling.max_tokens, engine.target.info.context - len(prompt)))
            seat = Seat(engine, Decoding(engine, prompt, fitted, Keyed(sampling.seed)), fitted)
            stack.callback(seat.running.close)
            seat.run.prefill = engine.now() - start
            seats.append(seat)
        solo = False
        while active := [seat for seat in seats if not seat.over]:
            solo = shared_pass(engine, active, measured=measured, again=solo)
        return [seat.run for seat in seats]


def shared_pass(engine: Engine, active: Sequence[Seat], *, measured: bool, again: bool) -> bool:
    """One pass over a tree of each; True where one had it for itself, `again` where that was so before."""
    books = list(ledgers(engine.recipe.parts()[-1]))
    answers: Any = list(active)
    batch = Batch(engine.target, engine.cost, answers, books, 0, engine.now)
    most = CAPACITY - 1
    for troubles in (batch.grow(most, most * len(active), again=again), batch.cut(most * len(active))):
        for _, error in troubles:
            raise error
    found: Any = batch.score(())
    for seat, scores in found.scores:
        found.steps.append((seat, seat.take(scores, found.joint)))
    batch.settle(found, measured=measured)
    return batch.solo
