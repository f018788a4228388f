"""Keys and values of a head of one layer: the rows of the text first, those of a tree in flight behind them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.arrays import BoolArray
from sapwood.tree import CAPACITY

if TYPE_CHECKING:
    from torch import Tensor

SPARE = 256  # slots a request has beyond its prompt's at first


class Cache:
    """Keys and values of the head's rows, [1, heads, slots, width] each, those of the text first."""

    def __init__(self, shape: Any, like: "Tensor", text: int) -> None:
        self.text, slots = 0, text + SPARE  # rows of the text, and room
        self.keys, self.values = (like.new_empty(1, shape.kv_heads, slots, shape.head_width) for _ in range(2))
        self.outputs = like.new_empty(CAPACITY, shape.width)  # of the tree's rows, the root's first

    def write(self, key: "Tensor", value: "Tensor", start: int) -> None:
        """Put rows at slot `start`; the slots double where they do not suffice."""
        stop = start + key.shape[2]
        if stop > self.keys.shape[2]:
            self.keys, self.values = doubled(self.keys, stop), doubled(self.values, stop)
        self.keys[:, :, start:stop] = key
        self.values[:, :, start:stop] = value

    def take(self, rows: list[int]) -> "Tensor":
        """Outputs of these rows of the tree, [rows, width]."""
        first, stop = rows[0], rows[-1] + 1
        return self.outputs[first:stop] if rows == list(range(first, stop)) else self.outputs[rows]


def doubled(slots: "Tensor", least: int) -> "Tensor":
    """The same slots, followed by as many empty ones, or by more to make `least`."""
    heads, used, width = slots.shape[1:]
    more = slots.new_empty(1, heads, max(least, 2 * used), width)
    more[:, :, :used] = slots
    return more


def lineage(ups: Sequence[int], first: int) -> BoolArray:
    """Which rows the rows from `first` on descend from, themselves included, [rows, all rows]."""
    up = np.array(ups)
    above = np.arange(first, len(up))
    seen = np.zeros((len(above), len(up)), bool)
    rows = np.arange(len(above))
    seen[rows, above] = True
    while above.any():  # the root's row is 0, and its own parent
        above = up[above]
        seen[rows, above] = True
    return seen
