"""Fused RMSNorm: the producer writes scaled rows and partial sums of squares.

The kernel that makes the rows also writes them multiplied by the norm's weight, and the squares of
its columns. The product behind the norm reads those and divides by the rows' RMS at its end, so
that nothing stands between its loads and its sums.

Squares are added up exactly, as whole numbers: a sum then does not depend on its order, which
differs with the tiles of a product.
"""

from dataclasses import dataclass
from math import frexp

import torch
from torch import Tensor

LEFT = 64  # most parts of the columns whose squares a product adds up


@dataclass(frozen=True, slots=True)
class NormScale:
    """Weight of a norm scaled to at most 1, so that no product overflows in float16."""

    norm: Tensor  # [width]
    lift: float  # divisor of the weight; a power of two, so the division is exact
    eps: float

    @classmethod
    def of(cls, norm: Tensor, eps: float) -> "NormScale":
        """Divide a norm's weight so that its largest entry is at most 1."""
        lift = max(1.0, 2.0 ** frexp(float(norm.detach().abs().max()))[1])
        return cls(norm.detach() / lift, lift, eps)


@dataclass(frozen=True, slots=True)
class NormBuffers:
    """Buffers for scaled rows and their squares."""

    scaled: Tensor  # [rows, width]
    squares: Tensor  # [LEFT, rows] int64, see `exact_sum.whole`

    @classmethod
    def make(cls, like: Tensor, rows: int, width: int) -> "NormBuffers":
        """Buffers for this many rows."""
        return cls(like.new_zeros(rows, width), like.new_zeros(LEFT, rows, dtype=torch.int64))


@dataclass(slots=True)
class PrenormRows:
    """Rows before a norm, with the parts of the norm that their producer has computed."""

    x: Tensor  # [rows, width]
    scale: NormScale
    norm_buffers: NormBuffers
    parts: int = 0  # of the columns, each with its squares; 0: nothing is computed yet

    def first(self, rows: int) -> "PrenormRows":
        """The first rows, in the same buffers."""
        return PrenormRows(self.x[:rows], self.scale, self.norm_buffers, self.parts)
