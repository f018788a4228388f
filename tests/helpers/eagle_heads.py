"""EAGLE-3 heads with random weights for the tiny models, and recipes that use them."""

from typing import Any

import torch

from sapwood.controllers.fixed import Fixed
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.estimators.raw import Raw
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

FEATURES = (0, 1, 2)
SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)


def make_head(vocab: int = 61, draft_vocab: int = 40, **changes: Any) -> Eagle3Head:
    """A head with random weights for the tiny models; its vocabulary leaves some tokens out."""
    torch.manual_seed(1)
    config = {
        "shape": SHAPE,
        "target_width": 32,
        "vocab": vocab,
        "draft_vocab": draft_vocab,
        "features": FEATURES,
    }
    head = Eagle3Head(Eagle3Config(**{**config, **changes}))
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


def tame_head(**changes: Any) -> Any:
    """A random head whose laws do not magnify the last bits of a state."""
    head = make_head(**changes)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(0.5 if parameter.dim() > 1 else 1.0)
    return head


def beam_recipe(head: Any, beam: int, budget: Fixed, estimator: Any = None) -> Recipe:
    return Recipe(Eagle3(head=head), Beam(beam=beam, estimator=estimator or Raw()), Match(), budget)


def merged_with_lookup(head: Any) -> Merge:
    return Merge(drafters=[Suffix(), Recycling(), Eagle3(head=head)])
