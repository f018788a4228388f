"""Rows on their way into a norm that two kernels share.

The kernel that makes the rows also leaves them multiplied by the norm's weight, and the squares of the
columns it made. The product behind the norm reads those and divides by the rows' sizes at its end, so that
nothing stands between its loads and its sums.
"""

from dataclasses import dataclass
from math import frexp

import torch
from torch import Tensor

LEFT = 64  # most parts of the columns whose squares a product adds up


@dataclass(frozen=True, slots=True)
class Scale:
    """A norm as kernels take it: its weight at most 1 in size, so that no product overflows in float16."""

    norm: Tensor  # [width]
    lift: float  # what the weight was divided by; a power of two, so that dividing lost nothing
    eps: float

    @classmethod
    def of(cls, norm: Tensor, eps: float) -> "Scale":
        """Divide a norm's weight by what brings its largest entry to 1 at most."""
        lift = max(1.0, 2.0 ** frexp(float(norm.detach().abs().max()))[1])
        return cls(norm.detach() / lift, lift, eps)


@dataclass(frozen=True, slots=True)
class Margin:
    """Room for what makers of rows leave beside them."""

    scaled: Tensor  # [rows, width]
    squares: Tensor  # [LEFT, rows] float32

    @classmethod
    def make(cls, like: Tensor, rows: int, width: int) -> "Margin":
        """Room for so many rows."""
        return cls(like.new_zeros(rows, width), like.new_zeros(LEFT, rows, dtype=torch.float32))


@dataclass(slots=True)
class Stream:
    """Rows, the norm they are on their way into, and how much of it is done."""

    x: Tensor  # [rows, width]
    scale: Scale
    margin: Margin
    parts: int = 0  # of the columns, each with its squares; 0: nothing of the norm is done yet
