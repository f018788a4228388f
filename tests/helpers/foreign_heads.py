"""An EAGLE-3 head as another trainer could have written it, its target, and the trees it drafts."""

from typing import Any

import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models

PROMPT = [1, 7, 9, 4, 7, 9]


def six_layer_target() -> TorchBackend:
    return TorchBackend(tiny_models.make("llama", num_hidden_layers=6), "tiny")


def foreign_head() -> Eagle3Head:
    torch.manual_seed(3)
    shape = LayerShape(32, 4, 2, 8, 48, 1e-6, 10_000.0)
    made = Eagle3Head(Eagle3Config(shape, 32, 61, 40, features=(2, 3, 3), context=128))
    made.use_vocabulary(torch.arange(40) + 11)
    return made.eval()


def drafted_trees(
    drafter: Any, backend: TorchBackend, rounds: int = 4
) -> list[tuple[list[int], list[int]]]:
    """Tokens and parents of the first trees, and with them all that the drafter proposed."""
    recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=3))
    running = Engine(backend, recipe).rounds(PROMPT, Sampling(max_tokens=32), KeyedRng(0))
    found = [next(running).grown for _ in range(rounds)]
    running.close()
    return [(tree.tokens.tolist(), tree.parents.tolist()) for tree in found]
