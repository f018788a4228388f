"""Hedge: every drafter is judged by what it would have drafted, and the best one drafts."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, RequestContext, TreeInput
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling, softmax
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.hedge import Hedge
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.testing.exact import outcomes
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.controller_rounds import begin, outcome

PROMPT = [0, 1, 2]


class Short(Chain):
    """A chain of one."""

    def frontier(self, tree: Tree, budget: Budget) -> Any:
        """The root alone."""
        return super().frontier(tree, budget) if tree.height == 0 else []


class Noted(Hedge):
    """A hedge that keeps every factor it computed, by drafter and place of the text."""

    def reset(self, request: RequestContext) -> None:
        """Begin an empty record."""
        self.columns_: list[list[float]] = [[] for _ in self.drafters]
        super().reset(request)

    def _factors(self, index: int, outcome: Outcome, path: tuple[int, ...]) -> FloatArray:
        found = super()._factors(index, outcome, path)
        self.columns_[index] += found.tolist()
        return found


def best_after(model: str, text: Sequence[int]) -> int:
    """The best next token of a toy."""
    toy = ToyBackend(model)
    [scores] = toy.score([TreeInput(toy.open(text[:-1]), Tree(text[-1]))])
    return int(scores.argmax()[0])


def run_hedge(
    hedge: Hedge, policy: Any, verifier: Any, sampling: Sampling, rng: Rng, rounds: int
) -> tuple[Any, Any]:
    """Rounds of a hedge: what was emitted, and the hedge of the request."""
    engine = Engine(ToyBackend("target"), Recipe(hedge, policy, verifier, Fixed(3, 3, 1)))
    kept: list[Hedge] = []
    fresh = engine.recipe.fresh

    def keep(request: RequestContext) -> Any:
        parts = fresh(request)
        kept.append(parts[0])  # type: ignore[arg-type]
        return parts

    object.__setattr__(engine.recipe, "fresh", keep)
    steps = list(itertools.islice(engine.rounds(PROMPT, sampling, rng), rounds))
    return steps, kept[0]


MODELS = ("draft", "target", "other")


def models(draws: Draw = Draw.TOPK) -> list[Drafter]:
    return [DraftModel(model=ToyBackend(name), draws=draws) for name in MODELS]


def test_every_drafter_is_judged_by_what_it_would_have_drafted() -> None:
    hedge: Any = Noted(drafters=models())
    steps, hedge = run_hedge(hedge, Chain(), Match(), Sampling(max_tokens=64), KeyedRng(0), 10)
    text = [token for step in steps for token in step.tokens]
    for name, factors in zip(MODELS, hedge.columns_, strict=True):
        right = [
            float(best_after(name, [*PROMPT, *text[:at]]) == token) for at, token in enumerate(text)
        ]
        assert factors == right
        assert (0.0 in right) is (name != "target")


def test_judging_takes_no_pass_of_the_target_and_leaves_the_round_alone() -> None:
    passes = []

    class Counted(ToyBackend):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            passes.append(len(work[0].tree))
            return super().score(work, chunks)

    hedge = Hedge(drafters=[Ngram(), *models()])
    engine = Engine(Counted("target"), Recipe(hedge, Static(shape=[2, 1]), Match(), Fixed(4, 2, 2)))
    steps = itertools.islice(engine.rounds(PROMPT, Sampling(max_tokens=64), KeyedRng(0)), 8)
    for count, step in enumerate(steps, 1):
        assert len(passes) == count
        sources = {int(source) for source in step.grown.sources[1:]}
        assert len(sources) <= 1  # one drafter alone
        assert len(step.grown) - 1 <= 4


def test_hedge_follows_the_drafter_that_is_right() -> None:
    hedge = Hedge(
        drafters=[DraftModel(model=ToyBackend("draft")), DraftModel(model=ToyBackend("target"))]
    )
    engine = Engine(ToyBackend("target"), Recipe(hedge, Chain(), Match(), Fixed(3, 3, 1)))
    steps = list(itertools.islice(engine.rounds(PROMPT, Sampling(max_tokens=200), KeyedRng(0)), 12))
    leaders = [int(step.grown.sources[1]) for step in steps]
    assert leaders[0] == 1
    assert set(leaders[6:]) == {2}
    weights = engine.recipe.drafter.learner.weights()  # type: ignore[attr-defined]
    assert weights[1] > 0.9
    again = next(engine.rounds(PROMPT, Sampling(max_tokens=20), KeyedRng(0)))
    assert int(again.grown.sources[1]) == 2  # what was learnt stays for the next request


def overlaps(model: str, text: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The laws of target and draft after this text, at temperature 1."""
    all_probs = []
    for name in ("target", model):
        toy = ToyBackend(name)
        [scores] = toy.score([TreeInput(toy.open(text[:-1]), Tree(text[-1]))])
        all_probs.append(softmax(scores.logits(0)))
    return all_probs[0], all_probs[1]


def test_products_of_factors_are_the_exact_chances_of_acceptance() -> None:
    # chances that its first draft stands, and its first two
    model = "other"
    exact = [0.0, 0.0]
    p, q = overlaps(model, PROMPT)
    for token, covered in enumerate(np.minimum(p, q)):
        after_p, after_q = overlaps(model, [*PROMPT, token])
        exact[0] += covered
        exact[1] += covered * np.minimum(after_p, after_q).sum()

    sampling = Sampling(temperature=1.0, max_tokens=8)
    drafters: list[Drafter] = [
        DraftModel(model=ToyBackend(name), draws=Draw.IID) for name in ("draft", model)
    ]
    found = np.zeros(2)
    paper = 0.0

    def run(rng: Rng) -> tuple[list[int], FloatArray]:
        hedge: Any = Noted(drafters=drafters)
        steps, hedge = run_hedge(hedge, Short(), Speculative(), sampling, rng, 2)
        return [token for step in steps for token in step.tokens], np.array(hedge.columns_[1][:2])

    for chance, (text, factors) in outcomes(run):
        found += chance * np.cumprod(factors)
        second = overlaps(model, [*PROMPT, text[0]])
        paper += chance * np.minimum(p, q).sum() * np.minimum(*second).sum()
    assert found == pytest.approx(exact, abs=1e-12)
    assert (
        abs(paper - exact[1]) > 1e-3
    )  # the overlap of the laws weighs first tokens by p, not by what is accepted


@pytest.mark.parametrize("draws", [Draw.IID, Draw.TOPK], ids=lambda draws: draws.value)
def test_hedge_keeps_the_law_over_rounds(draws: Draw) -> None:
    verifier: Any = Speculative() if draws is Draw.IID else Match()
    recipe = Recipe(Hedge(drafters=models(draws), window=1), Chain(), verifier, Fixed(1, 1, 1))
    assert law_error(recipe, rounds=2, horizon=3) <= 1e-12


def test_hedge_can_draw_its_drafter_and_counts_only_whole_windows() -> None:
    hedge: Any = begin(Hedge(drafters=[Ngram(), Ngram(longest=2)], draw=True, window=3))
    leaders = set()
    for position in range(40):
        hedge._choose(position)
        leaders.add(hedge.leader_)
    assert leaders == {0, 1}
    hedge.factors_ = [np.array((1.0, 1.0)), np.array((1.0, 0.0))]
    hedge._factors = lambda index, outcome, path: np.array([(0.5, 1.0)[index]])
    hedge._judge(outcome(0, 1))
    losses = np.array((1 - (1 + 1 + 1 + 0.5) / 4, 1 - (1 + 1 + 0 + 0) / 4))
    assert hedge.learner.regrets == pytest.approx(losses.mean() - losses)
    assert len(hedge.factors_) == 2


def test_a_rest_ends_the_windows() -> None:
    hedge: Any = begin(Hedge(drafters=[Ngram(), Ngram(longest=2)]))
    hedge.observe(outcome(1, 1))
    assert len(hedge.factors_) == 2
    hedge.observe(outcome(0, 0))
    assert hedge.factors_ == []


def test_hedge_needs_drafters_of_one_kind_and_at_least_one() -> None:
    with pytest.raises(SapwoodError, match="drafters=0 must be from 1 to 28"):
        Hedge(drafters=[])
    with pytest.raises(Unsound, match="mixes iid draws with others"):
        Recipe(Hedge(drafters=[Ngram(), *models(Draw.IID)]), Chain(), Match(), Fixed())
    assert isinstance(Hedge(), Part)
