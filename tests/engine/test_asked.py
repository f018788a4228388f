"""`Outcome.asked` tells a round that had no budget from one whose tree stayed empty."""

import itertools
from dataclasses import dataclass

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import Controller, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import NO_NODES, Budget, Outcome
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match


@dataclass
class EveryOther(Part):
    """Rests in the rounds of even number."""

    def reset(self, request: RequestContext) -> None:
        self.round_ = 0

    def budget(self) -> Budget:
        return Budget(3, 3, 1) if self.round_ % 2 else NO_NODES

    def observe(self, outcome: Outcome) -> None:
        self.round_ += 1


def rounds(controller: Controller, prompt: list[int], most: int = 20) -> list[Outcome]:
    engine = Engine(ToyBackend(), Recipe(Ngram(), Chain(), Match(), controller))
    sampling = Sampling(max_tokens=most)
    return list(itertools.islice(engine.rounds(prompt, sampling, KeyedRng(0)), 6))


def test_a_resting_round_was_not_asked_for() -> None:
    asked = [outcome.asked for outcome in rounds(EveryOther(), [0, 1, 2, 0, 1, 2])]
    assert asked == [False, True] * 3


def test_a_round_without_a_match_was_asked_for_all_the_same() -> None:
    first = rounds(Fixed(nodes=3, depth=3, width=1), [0, 1, 2])[0]
    assert len(first.tree) == 1
    assert first.asked


@pytest.mark.parametrize("most", [1, 2])
def test_a_round_that_has_room_for_the_bonus_alone_was_not(most: int) -> None:
    first = rounds(Fixed(nodes=3, depth=3, width=1), [0, 1, 2, 0, 1, 2], most)[0]
    assert first.asked == (most > 1)


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_drafter_reads_a_round_only_when_it_was_asked(nodes: int) -> None:
    read = []

    class Watched(Suffix):
        def catch_up(self) -> None:
            read.append(len(self.unindexed_))
            super().catch_up()

    engine = Engine(ToyBackend(), Recipe(Watched(), Chain(), Match(), Fixed(nodes=nodes)))
    found = engine.rounds([0, 1, 2], Sampling(max_tokens=20), KeyedRng(0))
    tokens = [len(outcome.tokens) for outcome in itertools.islice(found, 4)]
    assert [count for count in read if count] == (tokens if nodes else [])
