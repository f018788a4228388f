"""The judge excuses harmless mismatches, and strict it is exact."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Guarantee
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import Unsound
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.greedy import Greedy
from sapwood.verifiers.judge import Judge
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import LAYER, Mindful
from tests.helpers.trained_policy_rounds import EXACT, SMALL, played, text_of


@pytest.fixture
def kind_judge(tmp_path: Path) -> str:
    """A folder with a judge that finds everything harmless."""
    certain = NumpyMlp(
        [np.zeros((1, 3), np.float32)], [np.array([99.0], np.float32)], np.zeros(3), np.ones(3)
    )
    MlpBundle("judge", {"judge": certain}, {"layer": LAYER}).save(tmp_path)
    return str(tmp_path)


def test_a_judge_that_excuses_nothing_is_the_greedy_walk(kind_judge: str) -> None:
    greedy = Sampling(max_tokens=64)
    strict = Judge(threshold=1.0, weights=kind_judge)
    assert text_of(strict, greedy) == text_of(Greedy(), greedy)
    sampled = Sampling(temperature=1.0, max_tokens=64, seed=4)
    assert text_of(strict, sampled) == text_of(Match(), sampled)
    assert text_of(Judge(threshold=0.9, weights=kind_judge), greedy) != text_of(Greedy(), greedy)


def test_a_strict_judge_keeps_the_law(kind_judge: str) -> None:
    strict = Judge(threshold=1.0, weights=kind_judge)
    recipe = Recipe(DraftModel(model=ToyBackend("draft")), Static(shape=[2, 1]), strict, SMALL)
    assert law_error(recipe, Mindful("a"), rounds=2) <= EXACT
    lenient = Recipe(
        DraftModel(model=ToyBackend("draft")),
        Static(shape=[2, 1]),
        Judge(weights=kind_judge),
        SMALL,
    )
    assert law_error(lenient, Mindful("a")) > 1e-3  # it says LOSSY, and it is


def test_the_judge_excuses_the_most_harmless_child(tmp_path: Path) -> None:
    line = NumpyMlp(
        [np.eye(3, dtype=np.float32)[:1]], [np.array([1.0], np.float32)], np.zeros(3), np.ones(3)
    )
    MlpBundle("judge", {"judge": line}, {"layer": LAYER}).save(tmp_path)
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")),
        Static(shape=[2, 1]),
        Judge(weights=str(tmp_path)),
        Fixed(),
    )
    excused = 0
    for outcome in played(recipe, 40, Mindful()):
        tree = outcome.tree
        path = list(outcome.verdict.path)
        best = outcome.scores.argmax()
        for parent, child in itertools.pairwise(path):
            if tree.child(parent, int(best[parent])) is None:
                others = tree.children(parent)
                odds = {node: 1 + outcome.scores.logits(node)[0] for node in others}
                assert child == max(others, key=lambda node: odds[node])
                assert odds[child] > 0
                excused += 1
            else:
                assert tree.tokens[child] == best[parent]
    assert excused > 5


def test_the_judge_says_what_it_is() -> None:
    assert Judge().guarantee is Guarantee.LOSSY
    with pytest.raises(Unsound, match="cannot verify iid drafts, it verifies topk"):
        Recipe(DraftModel(model=ToyBackend("draft"), draws=Draw.IID), Chain(), Judge(), Fixed())
