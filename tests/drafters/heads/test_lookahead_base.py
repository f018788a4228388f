"""Drafts of rows in the verifying pass, on a table of exact probabilities."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.lookahead_base import LookaheadBase, MarginalBase
from sapwood.drafters.propose import propose
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.engine_rounds import rounds_until, same_on_24_prompts

ROWS = 2
SAMPLED = Sampling(temperature=1.3, max_tokens=4)


@dataclass
class TableRows(MarginalBase):
    """Look-ahead rows whose probs are the table's, without any weights."""

    def bind(self, setting: EngineContext) -> None:
        make = setting.target.capabilities.lookahead
        assert make is not None
        self.model: Any = make(lambda model: model)
        self.most = ROWS
        self.context = setting.target.info.context
        self.vocab = setting.target.info.vocab
        self.tokens = np.arange(self.vocab)


def chain_recipe() -> Recipe:
    drafter = TableRows(draws=Draw.IID)
    return Recipe(drafter, Chain(), Speculative(), Fixed(nodes=2, depth=2, width=1))


def tree_recipe() -> Recipe:
    return Recipe(TableRows(), Static(shape=[2, 1]), Match(), Fixed(nodes=4, depth=2, width=2))


@pytest.mark.parametrize("recipe", [chain_recipe(), tree_recipe()], ids=str)
def test_the_law_is_the_targets(recipe: Recipe) -> None:
    assert (
        law_error(recipe, ToyBackend(vocab=2), SAMPLED, rounds=2, horizon=3, prompt=[1, 0]) <= 1e-12
    )


def test_drafts_that_misstate_their_probs_would_be_noticed() -> None:
    def misstated(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        tree.proposals[node, 0] = np.roll(probs, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_base, "propose", misstated)
        assert (
            law_error(
                chain_recipe(), ToyBackend(vocab=2), SAMPLED, rounds=2, horizon=3, prompt=[1, 0]
            )
            > 1e-3
        )


def departure() -> float:
    """Largest difference of a drafted probability from the table, some rounds long."""
    target = ToyBackend(vocab=5)
    text = [1, 0, 4]
    worst = 0.0
    found = rounds_until(target, tree_recipe(), text, 10, Sampling())
    assert target.passes == len(found)  # no pass of its own
    for outcome in found:
        tree = outcome.grown
        for node in range(len(tree)):
            if children := tree.children(node):
                seen = (*text[:-1], *(5 + row for row in range(int(tree.depths[node]) + 1)))
                best = np.sort(probs_after(target.salt, 5, seen))[::-1][: len(children)]
                worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


def test_drafts_are_the_rows_behind_the_last_accepted_node() -> None:
    assert departure() < 1e-6


def test_rows_of_another_node_would_be_noticed() -> None:
    def takes_the_last(self: LookaheadBase, outcome: Outcome) -> None:
        original(self, outcome)
        assert outcome.lookahead is not None
        self.rows_ = outcome.lookahead.behind(len(outcome.tree) - 1)

    original = LookaheadBase.observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LookaheadBase, "observe", takes_the_last)
        assert departure() > 1e-3


def test_greedy_text_is_plain_decodings() -> None:
    same_on_24_prompts(ToyBackend(vocab=5), tree_recipe(), vocab=5)
