"""Helpers of one-layer heads: check against the target, attention masks, best tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.core.protocols import Backend, TargetOutput
from sapwood.core.tree import ROOT
from sapwood.core.whole_tree import FeatureSource
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from torch import Tensor


def check(net: Any, target: Backend, width: int) -> None:
    """Refuse a head that was made for another target."""
    config, model = net.config, target.info.model
    facts = [  # what, as the head wants it, as the target has it
        ("a vocabulary of", config.vocab, target.info.vocab),
        ("states of width", config.target_width, width),
        ("embeddings of width", config.shape.width, width),
        ("layers up to", max(config.features), target.capabilities.layers),
    ]
    for what, ours, theirs in facts:
        if ours > theirs or (ours < theirs and what != "layers up to"):
            raise SapwoodError(
                f"the {net.kind} head wants {what} {ours} and {model} has {theirs}; "
                f"make one that fits with `sapwood train {net.kind} --model {model}`"
            )


def lineage(ups: Sequence[int], first: int) -> BoolArray:
    """Mask of the ancestors of rows from `first` on, themselves included, [rows, all rows]."""
    up = np.array(ups)
    above = np.arange(first, len(up))
    seen = np.zeros((len(above), len(up)), bool)
    rows = np.arange(len(above))
    seen[rows, above] = True
    while above.any():  # the root's row is 0, and its own parent
        above = up[above]
        seen[rows, above] = True
    return seen


def tensor(features: "Tensor | FeatureSource") -> "Tensor":
    """Features as one tensor, gathered if necessary."""
    import torch

    found: Tensor = features if isinstance(features, torch.Tensor) else features.tensor()
    return found


class RootFeatures:
    """The target's hidden states of rounds without a tree, gathered when a head needs them."""

    def __init__(self, scores: Sequence[TargetOutput], layers: Sequence[int]) -> None:
        self.scores = scores
        self.layers = layers

    def tensor(self) -> "Tensor":
        """The features as one tensor, [rounds, features]."""
        import torch

        return torch.cat([scores.hidden((ROOT,), self.layers) for scores in self.scores])


def joined_text(
    parts: "Sequence[tuple[Tensor | FeatureSource, Sequence[int]]]",
) -> tuple["Tensor | FeatureSource", list[int]]:
    """Several pieces of text as one: features, and the token after each."""
    import torch

    features = [features for features, _ in parts]
    whole = features[0] if len(parts) == 1 else torch.cat([tensor(part) for part in features])
    return whole, [token for _, tokens in parts for token in tokens]


def leading(
    net: Any, outputs: "Tensor", count: int, vocabulary: IntArray
) -> tuple[IntArray, FloatArray]:
    """Best tokens of each row and probabilities, both [rows, count], by the head if it can."""
    found: tuple[IntArray, FloatArray] | None = net.best(outputs, count)
    return best(net.logits(outputs), count, vocabulary) if found is None else found


def best(logits: "Tensor", count: int, vocabulary: IntArray) -> tuple[IntArray, FloatArray]:
    """Best tokens of each row and their probabilities, both [rows, count]."""
    import torch

    exact = logits.float()
    top, ids = exact.topk(min(count, exact.shape[1]), -1)
    logps = (top - exact.logsumexp(-1, keepdim=True)).double()
    drafted, chances = torch.stack((ids.double(), logps)).cpu().numpy()  # one transfer
    tokens = vocabulary[drafted.astype(np.int64)]
    order = np.lexsort((tokens, -chances))  # the lowest id first in a tie
    return np.take_along_axis(tokens, order, 1), np.exp(np.take_along_axis(chances, order, 1))
