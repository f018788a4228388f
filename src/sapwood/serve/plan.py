"""One node budget for the whole batch, and how many rows a pass may have.

The best n nodes of a tree are closed under parents, since reach never rises along a path. So the nodes of
all trees can be put in one line, the likeliest first, and any beginning of that line is a set of trees that can
be checked. The beginning is taken that brings the most tokens over the price of the joint pass: where rows are cheap
all trees are large, where many requests share the pass only nodes that are nearly certain are left, and
a request that is easy to guess gets nodes that one which is not goes without.
"""

from collections.abc import Sequence

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.cost import CostCurve

LINE = 1024  # most rows of a pass that a bound on its seconds may allow
BOUNDLESS = 1 << 20  # rows of a pass that has no such bound


def spend(reaches: Sequence[FloatArray], price: FloatArray) -> list[int]:
    """How many of its best nodes each tree keeps: those of largest reach over all trees, as many as pay.

    `price` holds the tokens that 0, 1, 2, ... further nodes must bring, for as many as there may be.
    """
    counts = [len(reach) for reach in reaches]
    every = np.concatenate([np.sort(reach)[::-1] for reach in reaches]) if reaches else np.empty(0)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(-every, kind="stable")[: len(price) - 1]
    gain = np.append(0.0, np.cumsum(every[order]))
    total = int(np.argmax(gain - (price[: len(gain)] - price[0])))  # a staircase has many local optima: all are tried
    found: list[int] = np.bincount(owners[order[:total]], minlength=len(counts)).tolist()
    return found


def joint_price(cost: CostCurve, context: int, rate: float, rows: int, nodes: int) -> FloatArray:
    """Tokens that 0 to `nodes` further nodes must bring to pay for their place in a pass of so many rows."""
    line = cost.line(rows + nodes, context)[max(rows, 1) - 1 :]
    price: FloatArray = rate * (line - line[0])
    return price


def rows_within(cost: CostCurve, context: int, trees: int, seconds: float | None) -> int:
    """Most rows of a pass of so many trees that is expected to take no longer than this."""
    if seconds is None:
        return BOUNDLESS
    line = cost.line(LINE, context) + cost.drift * cost.tree * (trees - 1)
    able = np.flatnonzero(line <= seconds)
    return int(able[-1]) + 1 if len(able) else 0


def portions(wanted: Sequence[int], room: int) -> list[int]:
    """Rows that each prompt gets, the first ones first."""
    found = []
    for want in wanted:
        found.append(min(want, room))
        room -= found[-1]
    return found
