"""Speculative cascades follow their own mixture of p and q exactly, and defer as their rules say."""

import itertools

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.testing.exact import output_law
from sapwood.verifiers import cascades as cascades_module
from sapwood.verifiers.cascades import Cascades, Deferral

PROMPT = (0, 1, 2)
EXACT = 1e-12


def gap(rule: Cascades, target: str) -> float:
    """Largest gap between the text of one round of two drafts and the mixture's own distribution."""
    drafter = DraftModel(model=ToyBackend("draft"), draws=Draw.IID)
    recipe = Recipe(drafter, Chain(), rule, Fixed(nodes=2, depth=2, width=1))
    found = output_law(
        ToyBackend(target), recipe, PROMPT, Sampling(temperature=1.0, max_tokens=9), 1
    )
    worst = 0.0
    for first, second in itertools.product(range(3), repeat=2):
        wanted = mixed(rule, target, ())[first]
        ours = sum(chance for text, chance in found.items() if text[0] == first)
        worst = max(worst, abs(float(wanted) - ours))
        # a text that ended after one token goes on with the mixture in the next round
        longer = sum(chance for text, chance in found.items() if text[:2] == (first, second))
        stopped = sum(chance for text, chance in found.items() if text == (first,))
        begun = float(wanted) - stopped
        share = float(mixed(rule, target, (first,))[second])
        worst = max(worst, abs(longer - begun * share))
    return worst


def mixed(rule: Cascades, target: str, text: tuple[int, ...]) -> FloatArray:
    """The mixture after a text."""
    return rule.mixture(
        probs_after(target, 3, (*PROMPT, *text)), probs_after("draft", 3, (*PROMPT, *text))
    )


RULES = [Cascades(deferral, alpha) for deferral in Deferral for alpha in (0.1, 0.4, 0.8)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("target", ["a", "b", "c"])
def test_the_output_follows_the_mixture(rule: Cascades, target: str) -> None:
    assert gap(rule, target) <= EXACT


def test_a_residual_of_the_target_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascades_module, "residual", lambda mixture, q: mixture)
    assert max(gap(Cascades(Deferral.TOKEN), salt) for salt in "abc") > 1e-3


def test_each_rule_defers_by_its_own_measure() -> None:
    p = np.array([0.7, 0.2, 0.1])
    q = np.array([0.5, 0.4, 0.1])
    for deferral, alpha, defers in [
        (Deferral.CHOW, 0.49, True),
        (Deferral.CHOW, 0.51, False),
        (Deferral.DIFF, 0.19, True),
        (Deferral.DIFF, 0.21, False),
        (Deferral.OPT, 0.99, True),  # TV is 0.2
    ]:
        found = Cascades(deferral, alpha).mixture(p, q)
        assert np.array_equal(found, p if defers else q), (deferral, alpha)
    token = Cascades(Deferral.TOKEN, 0.5).mixture(p, q)
    assert token == pytest.approx([0.5 + 0.5 * 0.7, 0.5 * 0.2, 0.5 * 0.1])


def test_with_no_leniency_the_token_rule_keeps_the_best_token_alone() -> None:
    p = np.array([0.6, 0.4])
    q = np.array([0.3, 0.7])
    assert Cascades(Deferral.TOKEN, 0.0).mixture(p, q) == pytest.approx([0.3 + 0.42, 0.28])


def test_a_chosen_token_stands_by_the_rule_of_its_position() -> None:
    tree = Tree(0)
    first, second = tree.extend(ROOT, [1, 2], [0.6, 0.4])
    p = np.array([0.1, 0.3, 0.6])
    for rule, child, stands in [
        (Cascades(Deferral.TOKEN, 0.4), first, False),  # 0.3 is less than 0.6 of the best
        (Cascades(Deferral.TOKEN, 0.6), first, True),
        (Cascades(Deferral.TOKEN, 0.0), second, True),
        (Cascades(Deferral.CHOW, 0.3), first, False),
        (Cascades(Deferral.CHOW, 0.5), first, True),
        (Cascades(Deferral.DIFF, 0.0), first, True),  # the drafter is as sure as the target
    ]:
        assert rule._keeps(tree, ROOT, child, p) is stands, rule
    assert not Cascades(Deferral.DIFF)._keeps(tree, ROOT, first, np.array([0.5, 0.0, 0.5]))


@pytest.mark.parametrize(
    ("alpha", "verdict"), [(0.6, Verdict((ROOT,), 1)), (0.7, Verdict((ROOT, 1), 1))]
)
def test_a_chosen_token_stands_by_the_distance_of_p_and_q(alpha: float, verdict: Verdict) -> None:
    """The target is surer by 0.2, their distance is 0.3: `opt` defers below an alpha of 2/3."""
    tree = Tree(0)
    tree.extend(ROOT, [0], [0.5])
    tree.proposals[ROOT, 0] = np.array([0.5, 0.4, 0.1])
    laws = np.array([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1]])
    target = PathProbs(tree, ToyOutput(np.log(laws)), Sampler(Sampling(), [0]))
    assert Cascades(Deferral.OPT, alpha).verify(tree, target, 1, KeyedRng(0)) == verdict
