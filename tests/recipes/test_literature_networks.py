"""Recipes of the later literature that need a network: law, greedy text, and a mutant of each.

The target is a tiny model in double precision, so that the law holds to the last bits; heads have
random weights. Policies and verifiers are those of the named recipe, under a small budget.
"""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Guarantee, Verdict
from sapwood.drafters.compose.cascade import Cascade
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.heads.medusa import MedusaConfig
from sapwood.heads.medusa2 import Medusa2Heads
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.train.registry import objective
from sapwood.train.teacher import Teacher
from sapwood.verifiers.bild import Bild
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, plain_tokens, rounds_until, same_on_24_prompts

LAYERS = 4
# recipe -> kind of its head in the training registry; empty for those that need none
KINDS = {
    "blockwise": "medusa",
    "medusa2": "medusa2",
    "hass": "eagle",
    "dvi": "",
    "amphista": "amphista",
    "clover": "clover",
    "gumiho": "gumiho",
    "ctc": "ctc",
    "hidden-transfer": "hidden-transfer",
    "draft-on-the-fly": "",
    "three-model": "",
    "ppsd": "",
    "predictive": "",
}
# their driver follows the target along the runs itself: engine/test_pipeline.py breaks that
PIPELINES = {"ppsd", "predictive"}
SAMPLED = Sampling(temperature=1.3, max_tokens=3)


@cache
def target(vocab: int, layers: int = LAYERS) -> TorchBackend:
    """A tiny model in double precision."""
    changes = {"vocab_size": vocab, "num_hidden_layers": layers}
    return TorchBackend(tiny_models.make("llama", torch.float64, **changes), f"{vocab} tokens")


def random_head(kind: str, vocab: int, spread: float = 0.2) -> Any:
    """A head of this kind with random weights, over the whole vocabulary."""
    torch.manual_seed(1)
    if kind == "medusa2":
        head: Any = Medusa2Heads(MedusaConfig(32, vocab, 3))
    else:
        made: Any = objective(kind)
        names = {field.name for field in dataclasses.fields(made)}
        small = {"vocabulary": vocab, "heads": 3, "inner": 24, "rows": 3}
        changed = {name: value for name, value in small.items() if name in names}
        head = dataclasses.replace(made, **changed).build(
            Teacher(target(vocab)), np.ones(vocab, np.int64)
        )
    with torch.no_grad():
        for weight in head.parameters():
            weight += spread * torch.randn_like(weight)
    return head


def on_network(name: str, vocab: int) -> Recipe:
    """The recipe of this name with a random head and a small budget."""
    found = resolve(name)
    drafter: Any = found.drafter
    if KINDS[name]:
        drafter = dataclasses.replace(drafter, head=random_head(KINDS[name], vocab))
    if isinstance(drafter, Cascade):
        guesser = DraftModel(model=target(vocab, 1))
        drafter = dataclasses.replace(drafter, guesser=guesser)
    return Recipe(drafter, found.policy, found.verifier, Fixed(nodes=3, depth=2, width=2))


def law_of(name: str) -> float:
    """Departure from the target's law, enumerated."""
    recipe = on_network(name, 2)
    return law_error(recipe, target(2), SAMPLED, rounds=2, horizon=2, prompt=[1, 0, 1])


@pytest.mark.parametrize("name", KINDS)
def test_the_law_is_the_targets(name: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    assert law_of(name) <= 1e-12


@pytest.mark.parametrize("name", KINDS)
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    same_on_24_prompts(target(5), on_network(name, 5), count=4, vocab=5)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in PIPELINES])
def test_a_verifier_that_takes_a_drafted_token_unseen_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(resolve(name).verifier)
    verify = kind.verify

    def unseen(self: Any, tree: Tree, probs: TargetProbs, position: int, rng: Rng) -> Verdict:
        first = tree.children(ROOT)
        found = verify(self, tree, probs, position, rng)
        if not first or len(found.path) > 2:
            return found
        return Verdict((ROOT, first[0]), found.bonus)

    monkeypatch.setattr(kind, "verify", unseen)
    assert law_of(name) > 1e-3


# --------------------------------------------------------------------------------------------- free
def free(rollback: float) -> Recipe:
    """FREE's recipe with a random exit, which refuses tokens from this distance on."""
    found = resolve("free")
    drafter: Any = found.drafter
    return Recipe(
        dataclasses.replace(drafter, head=random_head("early-exit", 5, 2.0)),
        found.policy,
        Bild(rollback=rollback),
        found.controller,
    )


def texts(recipe: Recipe) -> list[list[int]]:
    prompts = [make_text(3 + seed % 7, seed, 5) for seed in range(24)]
    return [
        [token for outcome in rounds for token in outcome.tokens][:4]
        for rounds in (rounds_until(target(5), recipe, one, 4, Sampling()) for one in prompts)
    ]


def test_free_is_declared_lossy_and_departs_by_its_distance_alone() -> None:
    assert resolve("free").guarantee is Guarantee.LOSSY
    plain = [plain_tokens(target(5), make_text(3 + seed % 7, seed, 5), 4, ()) for seed in range(24)]
    assert texts(free(1e-9)) == plain  # every token but the target's best is too far from it
    assert texts(free(100.0)) != plain
