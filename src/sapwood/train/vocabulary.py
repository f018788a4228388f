"""The draft vocabulary: the most frequent tokens of a target's text."""

import numpy as np
import torch
from torch import Tensor

from sapwood.core.array_types import IntArray


def commonest(counts: IntArray, size: int) -> Tensor:
    """The most frequent tokens, ascending; of equals the lowest ids."""
    best = np.argsort(-counts, kind="stable")[: min(size, len(counts))]
    return torch.from_numpy(np.sort(best))


def coverage(counts: IntArray, tokens: Tensor) -> float:
    """Share of the text that these tokens make up."""
    return float(counts[tokens.cpu().numpy()].sum() / max(1, counts.sum()))
