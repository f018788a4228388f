"""The draft vocabulary: the tokens a target writes most."""

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import IntArray


def commonest(counts: IntArray, size: int) -> Tensor:
    """The most written tokens, ascending; of equals the lowest ids."""
    best = np.argsort(-counts, kind="stable")[: min(size, len(counts))]
    return torch.from_numpy(np.sort(best))


def coverage(counts: IntArray, tokens: Tensor) -> float:
    """Share of the written text that these tokens make up."""
    return float(counts[tokens.cpu().numpy()].sum() / max(1, counts.sum()))
