"""`spechub` judges a hub and one draw by its plan, and every other kind of siblings as `mixed` does."""

import numpy as np
import pytest

from sapwood.core.array_types import FloatArray
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import without
from sapwood.core.tree import ROOT, Tree
from sapwood.testing.exact import outcomes
from sapwood.verifiers import mixed, spechub

P = np.array([0.1, 0.2, 0.3, 0.4])
Q = np.array([0.4, 0.3, 0.2, 0.1])


def siblings(tokens: list[int], sampled: list[bool], q: FloatArray) -> Tree:
    """Children of a root, those that are sampled drawn from q."""
    tree = Tree(0)
    for rank, (token, drawn) in enumerate(zip(tokens, sampled, strict=True)):
        tree.add(ROOT, token, float(Q[token]), rank=rank, sampled=drawn)
    if any(sampled):
        tree.proposals[ROOT, 0] = q
    return tree


@pytest.mark.parametrize(
    ("tokens", "sampled"),
    [
        ([0, 1], [False, False]),
        ([0, 1], [True, True]),
        ([0], [False]),
        ([1], [True]),
        ([0, 1, 2], [False, True, True]),
        ([], []),
    ],
)
def test_other_siblings_are_judged_as_mixed_judges_them(
    tokens: list[int], sampled: list[bool]
) -> None:
    tree = siblings(tokens, sampled, Q)
    for seed in range(20):
        ours = spechub.step(tree, ROOT, P, 5, KeyedRng(seed))
        assert ours == mixed.step(tree, ROOT, P, 5, KeyedRng(seed))


def test_a_hub_that_the_draw_could_have_hit_is_judged_as_mixed_judges_it() -> None:
    tree = siblings([0, 1], [False, True], Q)
    for seed in range(20):
        ours = spechub.step(tree, ROOT, P, 5, KeyedRng(seed))
        assert ours == mixed.step(tree, ROOT, P, 5, KeyedRng(seed))


@pytest.mark.parametrize("hub", range(4))
def test_over_all_draws_a_pair_has_the_targets_distribution(hub: int) -> None:
    q = without(Q, [hub])
    found = np.zeros(4)
    for drawn in np.flatnonzero(q).tolist():
        tree = siblings([hub, drawn], [False, True], q)

        def run(rng: Rng, tree: Tree = tree) -> int:
            child, token = spechub.step(tree, ROOT, P, 5, rng)
            return token if child is None else int(tree.tokens[child])

        for weight, token in outcomes(run):
            found[token] += q[drawn] * weight
    np.testing.assert_allclose(found, P, atol=1e-12)
