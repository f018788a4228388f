"""A deep tiny target, stock and in int8, and the variants of itself that it drafts with."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import build
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models

DEEP = 4  # layers, so that two lie between the first and the last
TEXT = [int(token) for token in np.random.default_rng(0).integers(1, 60, 40)]
PLAIN = Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0))


@cache
def target(kind: str, name: str = "llama", **extra: Any) -> TorchBackend:
    """A tiny model of four layers, by its own code or packed."""
    model = tiny_models.make(name, num_hidden_layers=DEEP, **extra)
    return (
        TorchBackend(model, name) if kind == "stock" else build(model, name, "int8", lambda _: None)
    )


def rows_of(backend: Any, session: Any, tree: Tree) -> np.ndarray:
    [scores] = backend.score([TreeInput(session, tree)])
    return np.stack([scores.logits(node) for node in range(len(tree))])


each_target = pytest.mark.parametrize("kind", ["stock", "packed"])
VARIANTS: dict[str, dict[str, Any]] = {
    "skip": {"skip": [2, 5]},
    "bits": {"bits": 4},
    "window": {"sinks": 2, "recent": 8},
}
