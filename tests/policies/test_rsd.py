"""RSD: the stochastic beam is a sample without replacement, within the budget."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.common.rank_table import Ranks
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling, softmax
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.engine.request_decoder import grow
from sapwood.policies.rsd import Rsd
from sapwood.recipes import resolve
from sapwood.testing.exact import outcomes
from tests.helpers.oracle_drafter import EXACT, Oracle, paths, request, run


def raced(
    probs: dict[Ranks, float], beam: int
) -> dict[tuple[tuple[Ranks, ...], tuple[Ranks, ...]], float]:
    """Law of the beams of two levels: the first to come, without replacement, of all texts of two tokens."""
    found: dict[tuple[tuple[Ranks, ...], tuple[Ranks, ...]], float] = defaultdict(float)
    firsts = len({path[:1] for path in probs})

    def go(come: tuple[Ranks, ...], weight: float) -> None:
        tops = tuple(dict.fromkeys(path[:1] for path in come))
        if len(come) >= beam and len(tops) >= min(beam, firsts):
            found[tops[:beam], come[:beam]] += weight
            return
        left = {path: mass for path, mass in probs.items() if path not in come}
        for path, mass in left.items():
            go((*come, path), weight * mass / sum(left.values()))

    go((), 1.0)
    return found


@pytest.mark.parametrize(("seed", "beam"), [(0, 1), (0, 2), (1, 2), (0, 3)])
def test_the_stochastic_beam_is_a_sample_without_replacement(seed: int, beam: int) -> None:
    toy = ToyBackend(f"draft {seed}")
    budget = Budget(2 * beam, 2, 3)
    sampling = Sampling(temperature=1.0, max_tokens=9)

    def beams(rng: Rng) -> tuple[tuple[Ranks, ...], tuple[Ranks, ...]]:
        drafter = DraftModel(model=toy, draws=Draw.SWOR)
        policy = Rsd(beam=beam)
        asked = request(sampling)
        drafter.bind(EngineContext(ToyBackend(), flat(), no_loader))
        drafter.reset(asked)
        policy.reset(asked)
        policy.rng_ = rng  # its own noise is enumerated as well
        tree = grow(0, drafter, policy, budget, rng)
        kept = policy.prune(tree, budget)
        assert len(paths(kept)) == len(kept) - 1, "a path came twice"
        one, two = [
            tuple(tuple(tree.spell(node)[1:]) for node in level) for level in policy.beams_[1:]
        ]
        return one, two

    probs: dict[Ranks, float] = {
        (a, b): float(chances(toy, ())[a] * chances(toy, (a,))[b])
        for a in range(3)
        for b in range(3)
    }
    found: dict[Any, float] = defaultdict(float)
    for weight, result in outcomes(beams):
        found[result] += weight
    expected = raced(probs, beam)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=EXACT) for key in expected)


def chances(toy: ToyBackend, path: Ranks) -> FloatArray:
    """The toy's law after the prompt [0] and a path."""
    outcome = next(Engine(toy, resolve("plain")).rounds([0, *path], Sampling(), KeyedRng(0)))
    logits = outcome.scores.logits(0)
    return softmax(logits)


def test_chosen_beams_have_no_noise() -> None:
    oracle = Oracle(2)
    tree = run(Rsd(beam=3), oracle, Budget(9, 3, 3))
    same = run(Rsd(beam=3, seed=7), Oracle(2), Budget(9, 3, 3))
    assert paths(tree) == paths(same)
    for depth in (1, 2, 3):
        assert len(tree.level(depth)) == 3


@given(st.integers(0, 12), st.integers(1, 4))
def test_beams_fit_the_budget(nodes: int, beam: int) -> None:
    tree = run(Rsd(beam=beam), Oracle(1, sampled=True), Budget(nodes, 3, 3))
    assert len(tree) - 1 <= nodes
    assert all(len(tree.level(depth)) <= beam for depth in (1, 2, 3))
    assert len(tree) - 1 == min(nodes, sum(min(beam, 3**depth) for depth in (1, 2, 3)))
