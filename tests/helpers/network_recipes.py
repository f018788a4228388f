"""Named recipes on a tiny network in double precision, with heads of random weights.

In double precision the law holds to the last bits. Policies and verifiers are those of the named
recipe, under a small budget.
"""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.cascade import Cascade
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.heads.online import Online
from sapwood.heads.medusa import MedusaConfig
from sapwood.heads.medusa2 import Medusa2Heads
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.train.registry import objective
from sapwood.train.teacher import Teacher
from tests.helpers import tiny_models

LAYERS = 4
SAMPLED = Sampling(temperature=1.3, max_tokens=3)
SMALL = Fixed(nodes=3, depth=2, width=2)


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


def on_network(name: str, vocab: int, kind: str = "", controller: Any = SMALL) -> Recipe:
    """The recipe of this name with a random head of this kind and a small budget."""
    found = resolve(name)
    drafter: Any = found.drafter
    if isinstance(drafter, Online):
        drafter = dataclasses.replace(
            drafter, drafter=Eagle3(head=random_head(kind, vocab)), seconds=60.0
        )
    elif kind:
        drafter = dataclasses.replace(drafter, head=random_head(kind, vocab))
    if isinstance(drafter, Cascade):
        guesser = DraftModel(model=target(vocab, 1))
        drafter = dataclasses.replace(drafter, guesser=guesser)
    return Recipe(drafter, found.policy, found.verifier, controller)


def law_on_network(recipe: Recipe) -> float:
    """Departure from the target's law over two tokens, enumerated."""
    return law_error(recipe, target(2), SAMPLED, rounds=2, horizon=2, prompt=[1, 0, 1])
