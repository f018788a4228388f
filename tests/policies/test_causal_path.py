"""Causal path search: the best path by draft and n-grams, against all paths, and the length rule."""

import itertools
import math
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.adaptive_length import AdaptiveLength
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw
from sapwood.policies.causal_path import HALF, CausalPath, NgramProxy
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from tests.helpers.engine_rounds import same_on_24_prompts

DEPTH = 4
PLACES = np.random.default_rng(3).dirichlet(np.full(5, 0.6), DEPTH)  # probs of each place
PROMPT = [0, 1, 2, 3, 1, 2, 4, 1, 2, 3]


class Places(Part):
    """Drafts every place from a distribution of its own, as a parallel drafter does."""

    name = "ngram"
    draws = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, places: Any = PLACES) -> None:
        self.places = places

    def fresh(self) -> "Places":
        return self

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            depth = int(tree.depths[node])
            if depth < len(self.places):
                best = np.argsort(-self.places[depth], kind="stable")[:width]
                tree.extend(node, best.tolist(), self.places[depth][best].tolist())


def begun(policy: CausalPath, stops: tuple[int, ...] = ()) -> CausalPath:
    sampler = SimpleNamespace(sampling=Sampling(stop_ids=stops))
    policy.reset(SimpleNamespace(prompt=PROMPT, sampler=sampler))  # type: ignore[arg-type]
    return policy


def searched(policy: CausalPath, budget: Budget) -> tuple[Tree, list[int]]:
    """The grown tree, and the tokens of the path that is kept."""
    tree = Tree(PROMPT[-1])
    while frontier := policy.frontier(tree, budget):
        size = len(tree)
        Places().expand(tree, frontier, None)  # type: ignore[arg-type]
        for node, _ in frontier:
            tree.close(node)
        if len(tree) == size:
            break
    kept = policy.prune(tree, budget)
    return tree, kept.tokens[1:].tolist()


def candidates(place: Any, mass: float) -> list[int]:
    order = np.argsort(-place, kind="stable").tolist()
    before = np.concatenate([[0.0], np.cumsum(place[order])[:-1]])
    return [token for token, taken in zip(order, before, strict=True) if taken < mass]


def by_hand(policy: CausalPath, path: tuple[int, ...]) -> float:
    proxy = NgramProxy(policy.order)
    proxy.add(PROMPT)
    score = 0.0
    for depth, token in enumerate(path):
        score += policy.share * math.log(PLACES[depth][token])
        score += (1 - policy.share) * proxy.log_prob([PROMPT[-1], *path[: depth + 1]])
    return score


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mass", [0.5, 0.9, 1.0])
def test_a_wide_beam_finds_the_best_of_all_paths(share: float, mass: float) -> None:
    policy = begun(CausalPath(beam=2000, most=5, mass=mass, share=share))
    _, found = searched(policy, Budget(DEPTH, DEPTH, 5))
    every = itertools.product(*(candidates(place, mass) for place in PLACES))
    assert by_hand(policy, tuple(found)) == pytest.approx(
        max(by_hand(policy, path) for path in every)
    )


def test_the_draft_alone_takes_the_best_token_of_each_place() -> None:
    _, found = searched(begun(CausalPath(share=1.0)), Budget(DEPTH, DEPTH, 5))
    assert found == PLACES.argmax(1).tolist()


def test_n_grams_move_the_path() -> None:
    paths = {
        share: searched(begun(CausalPath(share=share, beam=99, mass=1.0)), Budget(4, 4, 5))[1]
        for share in (0.1, 1.0)
    }
    assert paths[0.1] != paths[1.0]


def test_a_path_ends_with_the_text_and_the_budget_cuts_it() -> None:
    end = int(PLACES[1].argmax())
    policy = begun(CausalPath(beam=1, share=1.0), (end,))
    tree, found = searched(policy, Budget(DEPTH, DEPTH, 5))
    assert found[-1] == end or end not in found
    assert all(
        not tree.children(node) for node in range(1, len(tree)) if int(tree.tokens[node]) == end
    )
    assert len(searched(begun(CausalPath()), Budget(2, DEPTH, 5))[1]) <= 2
    assert begun(CausalPath()).prune(Tree(0), Budget(2, 2, 2)).tokens.tolist() == [0]


def test_a_path_of_one_token_is_scored_by_that_token() -> None:
    policy = begun(CausalPath(share=1.0, mass=1.0), (1,))
    tree = Tree(PROMPT[-1])
    _, other = tree.extend(ROOT, [1, 0], [0.4, 0.6])
    tree.extend(other, [2], [0.2])
    budget = Budget(DEPTH, DEPTH, 5)
    # ln 0.4 against the mean of ln 0.6 and ln 0.2, which is ln 0.35
    assert policy.prune(tree, budget).tokens[1:].tolist() == [1]
    tree.probs[1] = 0.3
    assert policy.prune(tree, budget).tokens[1:].tolist() == [0, 2]


def test_the_proxy_reads_the_end_of_the_text_before_the_root() -> None:
    proxy = NgramProxy(3)
    proxy.add([7, 1, 2, 8, 1, 3])
    # after "8 1" there was 3 alone, after "1" 2 and 3
    alone = HALF / 7 + (1 - HALF) / 6
    pair = HALF * alone + (1 - HALF) / 2
    proxy.tail = [7, 8, 1]
    assert proxy.log_prob([1, 3]) == pytest.approx(math.log(HALF * pair + (1 - HALF)))


def test_probabilities_of_the_proxy_add_up() -> None:
    proxy = NgramProxy(3)
    proxy.add(PROMPT)
    for root in (3, 5):
        total = sum(math.exp(proxy.log_prob([root, token])) for token in range(5))
        assert total <= 1.0 + 5 / (1 + len(PROMPT))
    assert proxy.log_prob([2, 3]) > proxy.log_prob([2, 5])


# ------------------------------------------------------------------------------------- the engine
def test_the_law_and_the_text_are_the_targets() -> None:
    places = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]])
    recipe = Recipe(
        Places(places),
        CausalPath(),
        Match(),
        AdaptiveLength(least=1, most=2, step=1, width=3),
    )
    assert law_error(recipe, ToyBackend("a"), rounds=2, horizon=3) <= 1e-12
    same_on_24_prompts(ToyBackend("b"), recipe, vocab=3)


def test_a_path_through_tokens_of_other_branches_would_be_noticed() -> None:
    """The mutant keeps a node without the path that leads to it."""

    class Torn(CausalPath):
        """Moves the last token of the path below the root."""

        name = "causal-path"

        def prune(self, tree: Tree, budget: Budget) -> Tree:
            kept = super().prune(tree, budget)
            return tree.keep([len(tree) - 1]) if len(kept) > 2 else kept

    recipe = Recipe(Places(), Torn(), Match(), Fixed(nodes=3, depth=3, width=3))
    with pytest.raises(ValueError, match="cannot be kept without its parent"):
        same_on_24_prompts(ToyBackend("b", vocab=5), recipe, vocab=5)


# ----------------------------------------------------------------------------------------- lengths
def test_lengths_follow_drafts_and_acceptance() -> None:
    control = AdaptiveLength(least=2, most=12, step=3)
    control.reset(None)  # type: ignore[arg-type]
    assert control.budget() == Budget(12, 12, 5)

    def seen(drafted: int, accepted: int) -> int:
        tree = Tree(0)
        for node in range(drafted):
            tree.add(node, 1, 0.5)
        verdict = SimpleNamespace(accepted=accepted)
        control.observe(SimpleNamespace(tree=tree, verdict=verdict))  # type: ignore[arg-type]
        return control.budget().depth

    assert seen(4, 4) == 7  # all accepted: the average of 4 and a step more
    assert seen(7, 2) == 6  # averages 5.5 and 3
    assert seen(1, 0) == 4  # averages 3.25 and 1.5
    assert seen(0, 0) == 4  # no draft, no change
    assert seen(5, 4) == 5  # averages 4.125 and 2.75
    assert [seen(1, 0) for _ in range(4)][-1] == 2  # not below the least
