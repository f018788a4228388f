"""Node budget of the whole batch, and the number of rows that a pass may have.

The best n nodes of a tree are closed under parents, since reach never rises along a path. So the
nodes of all trees can be sorted into one list, the likeliest first, and any prefix of that list is
a set of trees that can be verified. The prefix with the most expected tokens over the price of the
whole pass is kept: when rows are cheap all trees are large; when many requests share the pass only
nearly certain nodes are left; a request that is easy to draft gets more nodes than others.
"""

from collections.abc import Sequence

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.engine.cost_model import CostModel

LINE = 1024  # most rows of a pass that a bound on its seconds may allow
CHEAP = 4  # times the seconds of a pass over roots; so long may one with cheap prompts take
BOUNDLESS = 1 << 20  # rows of a pass that has no such bound


def spend(reaches: Sequence[FloatArray], price: FloatArray) -> list[int]:
    """Number of nodes that each tree keeps: those of largest reach over all trees that pay.

    `price` holds the tokens that 0, 1, 2, ... further nodes must bring.
    """
    counts = [len(reach) for reach in reaches]
    every = np.concatenate([np.sort(reach)[::-1] for reach in reaches]) if reaches else np.empty(0)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(-every, kind="stable")[: len(price) - 1]
    gain = np.append(0.0, np.cumsum(every[order]))
    # the price is a staircase with many local optima: all are tried
    total = int(np.argmax(gain - (price[: len(gain)] - price[0])))
    found: list[int] = np.bincount(owners[order[:total]], minlength=len(counts)).tolist()
    return found


def batch_price(cost: CostModel, context: int, rate: float, rows: int, nodes: int) -> FloatArray:
    """Tokens that 0 to `nodes` further nodes must bring to pay off in a pass of so many rows."""
    line = cost.line(rows + nodes, context)[max(rows, 1) - 1 :]
    price: FloatArray = rate * (line - line[0])
    return price


def rows_within(cost: CostModel, context: int, trees: int, seconds: float | None) -> int:
    """Most rows of a pass of so many trees that is predicted to take at most `seconds`."""
    if seconds is None:
        return BOUNDLESS
    line = cost.line(LINE, context) + cost.drift * cost.tree * (trees - 1)
    able = np.flatnonzero(line <= seconds)
    return int(able[-1]) + 1 if len(able) else 0


def prefill_rows(
    cost: CostModel, context: int, trees: int, least: int, most: int, *, behind: bool = False
) -> int:
    """Rows of prompts in a pass of so many trees: as many as at most double its seconds.

    `behind` takes the most, where they are cheap: requests that begin sooner share more passes.
    """
    line = cost.line(trees + most, context)
    if behind and line[-1] <= CHEAP * line[max(trees, 1) - 1]:
        return most
    able = np.flatnonzero(line[trees:] <= 2 * line[max(trees, 1) - 1])
    return max(int(able[-1]) + 1 if len(able) else 0, least)


def portions(wanted: Sequence[int], room: int) -> list[int]:
    """Rows of each prompt, given out in order."""
    found = []
    for want in wanted:
        found.append(min(want, room))
        room -= found[-1]
    return found
