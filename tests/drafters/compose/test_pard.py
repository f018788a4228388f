"""A draft model with mask tokens: one pass a round, drafts by definition, law, mask token."""

from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose import draft_model
from sapwood.drafters.compose.masked_base import MaskedBase
from sapwood.drafters.compose.pard import Pard
from sapwood.drafters.propose import propose
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until, same_on_24_prompts

MASK = 2
ROWS = 3
SAMPLED = Recipe(
    Pard(model=ToyBackend("draft"), draws=Draw.IID, rows=1, mask=MASK),
    Chain(),
    Speculative(),
    Fixed(nodes=2, depth=2, width=1),
)


def departure() -> float:
    """Largest difference of a drafted probability from the draft's table, some rounds long."""
    draft = ToyBackend("draft", vocab=5)
    recipe = Recipe(
        Pard(model=draft, rows=ROWS, mask=MASK),
        Static(shape=[2, 1, 1, 1, 1, 1]),
        Match(),
        Fixed(nodes=20, depth=6, width=2),
    )
    text = [1, 0, 4]
    worst = 0.0
    for outcome in rounds_until(ToyBackend("target", vocab=5), recipe, text, 12, Sampling()):
        tree = outcome.grown
        assert tree.height == ROWS + 1
        for node in range(len(tree)):
            if children := tree.children(node):
                seen = (*text, *[MASK] * int(tree.depths[node]))
                best = np.sort(probs_after("draft", 5, seen))[::-1][: len(children)]
                worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


def test_every_depth_is_the_output_of_its_mask() -> None:
    assert departure() < 1e-12


def test_masks_that_stay_in_the_cache_would_be_noticed() -> None:
    def keeps_all(self: MaskedBase, outcome: Any) -> None:
        assert self.scratch_ is not None
        self.session_.commit(range(len(self.scratch_)))
        self.unread_ = list(outcome.tokens)
        self.scratch_ = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedBase, "observe", keeps_all)
        assert departure() > 1e-3


def test_a_round_is_one_pass_of_the_draft_model() -> None:
    draft = ToyBackend("draft", vocab=5)
    drafter = Pard(model=draft, rows=ROWS, mask=MASK)
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=4, depth=4, width=1))
    rounds = rounds_until(ToyBackend("target", vocab=5), recipe, [1, 0, 4], 12, Sampling())
    assert draft.passes == len(rounds)
    assert all(len(outcome.tree) == 5 for outcome in rounds)


def test_the_law_is_the_targets() -> None:
    sampling = Sampling(temperature=1.3, max_tokens=4)
    assert law_error(SAMPLED, ToyBackend(), sampling, rounds=2, horizon=3) <= 1e-12


def test_drafts_that_misstate_their_probs_would_be_noticed() -> None:
    def misstated(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        tree.proposals[node, 0] = np.roll(probs, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "propose", misstated)
        sampling = Sampling(temperature=1.3, max_tokens=4)
        assert law_error(SAMPLED, ToyBackend(), sampling, rounds=1, horizon=2) > 1e-3


def test_the_mask_token_is_read_from_the_config() -> None:
    model = tiny_models.make("llama")
    model.config.pard_token = 60
    drafter = Pard(model=TorchBackend(model, "draft"), rows=ROWS)
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=4, depth=4, width=1))
    same_on_24_prompts(tiny_models.backend("llama"), recipe)
    bound = Engine(tiny_models.backend("llama"), recipe).recipe.drafter
    assert isinstance(bound, Pard)
    assert bound.masks == [60] * ROWS


def test_a_model_without_a_mask_token_and_none_at_all_are_refused() -> None:
    nameless = Recipe(
        Pard(model=tiny_models.backend("llama")), Chain(), Match(), Fixed(nodes=4, depth=4, width=1)
    )
    with pytest.raises(SapwoodError, match="names no mask token"):
        same_on_24_prompts(tiny_models.backend("llama"), nameless)
    missing = Recipe(Pard(), Chain(), Match(), Fixed(nodes=4, depth=4, width=1))
    with pytest.raises(SapwoodError, match="sapwood train pard"):
        same_on_24_prompts(tiny_models.backend("llama"), missing)
    with pytest.raises(SapwoodError, match="rows=0"):
        Pard(rows=0)
