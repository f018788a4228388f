"""Retrieval decides when and what by the target's entropy and by feedback; the text stays."""

from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, Verdict
from sapwood.drafters.compose import respec as respec_module
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.respec import PRIOR, EntropyLimit, Respec
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.naive import Naive

PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]


def made(draws: Draw = Draw.TOPK) -> Respec:
    return Respec(drafters=[DraftModel(model=ToyBackend("draft"), draws=draws), Suffix()])


def recipe(drafter: Respec) -> Recipe:
    return Recipe(drafter, Static(shape=[2, 1]), Match(), Fixed(nodes=4, depth=2, width=2))


def begun() -> Respec:
    """A drafter that has begun a request."""
    engine = Engine(ToyBackend("a"), recipe(made()))
    drafter = RequestDecoder(engine, PROMPT, Sampling(), KeyedRng(0)).drafter
    assert isinstance(drafter, Respec)
    return drafter


@pytest.fixture
def always_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Respec, "sure", property(lambda self: True))


@pytest.mark.usefixtures("always_sure")
def test_the_law_is_exact_with_retrieved_trees() -> None:
    rule = Recipe(made(), Static(shape=[2, 1]), Naive(), Fixed(nodes=4, depth=2, width=2))
    for checked in (rule, recipe(made())):
        assert law_error(checked, ToyBackend("a"), prompt=PROMPT, rounds=2, horizon=3) <= 1e-12


def test_the_text_is_plain_decodings() -> None:
    plain = Recipe(Ngram(), Chain(), Match(), Fixed(nodes=0))
    for seed in range(24):
        texts = []
        for each in (plain, recipe(made())):
            rounds = Engine(ToyBackend("a"), each).rounds(
                [*PROMPT, seed % 3], Sampling(temperature=seed % 2), KeyedRng(seed)
            )
            text = list[int]()
            while len(text) < 20:
                text += next(rounds).tokens
            texts.append(text[:20])
        assert texts[0] == texts[1]


@pytest.mark.usefixtures("always_sure")
def test_a_rule_that_takes_retrieved_tokens_unchecked_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def easy(self: Match, tree: Tree, target: object, position: int, rng: object) -> Verdict:
        children = tree.children(ROOT)
        if not children:
            return verify(self, tree, target, position, rng)  # type: ignore[arg-type]
        return Verdict((ROOT,), int(tree.tokens[children[0]]))

    verify = Match.verify
    monkeypatch.setattr(Match, "verify", easy)
    assert law_error(recipe(made()), ToyBackend("a"), prompt=PROMPT) > 0.1


def test_it_retrieves_only_where_the_target_was_sure() -> None:
    drafter = begun()
    for nats, source in ((0.1, 1), (9.0, 0)):
        drafter.entropies_.append(nats)
        drafter.entropies_.append(nats)
        tree = Tree(1)
        drafter.expand(tree, [(ROOT, 2)], KeyedRng(0))
        assert (tree.sources[1:] == 1 << source).all()
        assert (drafter.retrieving_ is tree) == (source == 1)
        drafter.entropies_.clear()


@pytest.mark.usefixtures("always_sure")
def test_a_retrieved_tree_is_retrieved_on_all_its_levels() -> None:
    drafter = begun()
    tree = Tree(1)
    drafter.expand(tree, [(ROOT, 2)], KeyedRng(0))
    first = tree.children(ROOT)
    assert first
    drafter.expand(tree, [(first[0], 2)], KeyedRng(0))
    assert len(tree.children(first[0])) > 0
    assert (tree.sources[1:] == 1 << 1).all()


def test_no_tree_is_grown_beforehand() -> None:
    shape: Any = None
    assert not made().accepts_seed()
    assert made().draft_tree(0, shape) is None


def test_the_limit_lies_between_right_and_wrong() -> None:
    limit = EntropyLimit(fade=0.5)
    assert limit.nats == 2.0
    limit.add(0.5, right=False)  # a sure target, and a wrong lookup: be more careful
    assert (limit.right, limit.wrong, limit.nats) == (1.0, 1.75, 1.375)
    limit.add(0.5, right=True)
    assert (limit.right, limit.wrong, limit.nats) == (0.75, 1.75, 1.25)
    for _ in range(20):
        limit.add(4.0, right=True)
    assert limit.nats == pytest.approx(4.0, abs=0.1)
    assert limit.wrong >= limit.right


def test_what_was_accepted_before_comes_first() -> None:
    drafter = begun()
    assert drafter.chance(1, 2, 0.5) == 0.5
    tree = Tree(1)
    drafter.retrieving_ = tree
    wrong, right = tree.extend(ROOT, [2, 0], [0.6, 0.3])
    drafter.entropies_.append(1.0)
    scores = ToyBackend("a").scores([(0,), (1,), (2,)])
    drafter._judge(Outcome(tree, tree, Verdict((ROOT, right), 1), scores, 8))
    assert drafter.chance(1, 2, 0.6) == pytest.approx(PRIOR * 0.6 / (1 + PRIOR))
    assert drafter.chance(1, 0, 0.6) == pytest.approx((1 + PRIOR * 0.6) / (1 + PRIOR))
    assert wrong != right


def test_feedback_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respec_module, "MOST", 1)
    drafter = begun()
    tree = Tree(1)
    tree.extend(ROOT, [2, 0], [0.6, 0.3])
    scores = ToyBackend("a").scores([(0,), (1,), (2,)])
    drafter._judge(Outcome(tree, tree, Verdict((ROOT,), 1), scores, 8))
    assert [*drafter.feedback] == [(1, 0)]


def test_the_entropy_is_the_targets() -> None:
    drafter = begun()
    scores = ToyBackend("a").scores([(0, 1)])
    probs = np.exp(scores.rows[0])
    tree = Tree(1)
    for shift in (0.0, 1000.0):  # a model's logits are no log-probabilities
        output = ToyOutput(scores.rows + shift)
        drafter.observe(Outcome(tree, tree, Verdict((ROOT,), 1), output, 8))
        assert drafter.entropies_[-1] == pytest.approx(-float(probs @ np.log(probs)))


def test_drawn_tokens_are_refused() -> None:
    with pytest.raises(Unsound, match="draws=topk"):
        recipe(made(Draw.IID))
    with pytest.raises(SapwoodError, match="drafters"):
        Respec(drafters=[Ngram()])
