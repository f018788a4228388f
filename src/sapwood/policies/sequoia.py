"""The best tree of a size for measured acceptance, by a dynamic programme; its size by the machine.

Sequoia (arXiv 2402.12374): measure how often the first, second, ... of the siblings tested is the accepted
one, the same at every node. A tree of m nodes splits into its root with one child less and the subtree of
the last child, so the expected tokens of the best trees follow from those of smaller ones. Among all sizes and depths
the one with the most tokens for its seconds is grown. The shape looks at no token, so that
drafts of every kind keep the target's law. The paper measures beforehand with wide trees; here every round counts,
and a usual vector fills in for what was not tried. Greedy and sampled decoding are counted apart.
"""

import functools
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.part import at_least
from sapwood.policies.accepted import Accepted, Book
from sapwood.policies.pace import Pace
from sapwood.policies.sparse import Ranked, Ranks
from sapwood.protocols import Request, Setting
from sapwood.records import Budget, Outcome

TINY = 1e-12  # stands in for a chance of zero, which a tree that does not exist must not be multiplied by
Shape = tuple[tuple[float, ...], int, int]  # what is solved: acceptance, nodes, depth


@dataclass
class Sequoia(Ranked):
    """The tree of most expected tokens for measured acceptance, in the size that pays best."""

    store: str = ""  # word under which acceptance is kept from run to run, one for each drafter; empty keeps nothing
    every: int = 16  # rounds after which the tree is found anew, >= 1

    paper: ClassVar[str] = "2402.12374"

    def __post_init__(self) -> None:
        at_least(1, every=self.every)

    def bind(self, setting: Setting) -> None:
        """Open the record of acceptance; it is shared by all requests."""
        self.book = Book(setting.target.info.model, self.store)
        self.pace = Pace()
        self.trees: dict[str, list[int]] = {}  # the last tree of each way of decoding, as numbers of children

    def reset(self, request: Request) -> None:
        """Take the record of this way of decoding."""
        self.way_ = "greedy" if request.sampler.sampling.greedy else "sampled"
        self.record_: Accepted = self.book.records[self.way_]
        self.shape_: Shape = (), 0, 0
        self.begun_ = False

    def _within(self, budget: Budget) -> list[Ranks]:
        """The tree that pays best."""
        stale = not self.shape_[0] or self.record_.rounds % self.every == 0
        vector = self.record_.vector(budget.width) if stale else self.shape_[0][: budget.width]
        self.shape_ = vector, max(self.shape_[1], budget.nodes), max(self.shape_[2], budget.depth)
        table = solve(*self.shape_)
        size, depth = choose(table.tokens, budget, self.pace.each)
        paths = table.tree(size, depth)
        self.trees[self.way_] = children(paths) or self.trees.get(self.way_, [])
        return paths

    def observe(self, outcome: Outcome) -> None:
        """Count the tests; a request's first round read the prompt as well, so that it is not timed."""
        self.record_.observe(outcome)
        if self.begun_:
            self.pace.observe(outcome)
        self.begun_ = True

    def close(self) -> None:
        """Keep the record, now and then."""
        self.book.save(self.trees)


def choose(tokens: FloatArray, budget: Budget, level: float) -> tuple[int, int]:
    """Rows (root included) and depth that bring the most tokens over their price; `tokens` is [depth, rows]."""
    able = tokens[: budget.depth + 1, : budget.nodes + 2].copy()
    if budget.price is not None:
        able[:, 1:] -= budget.price[: able.shape[1] - 1]
    able -= budget.rate * level * np.arange(len(able))[:, None]
    depth, rows = np.unravel_index(int(np.argmax(able)), able.shape)
    return int(rows), int(depth)


class Table(NamedTuple):
    """The best trees of all sizes and depths."""

    tokens: FloatArray  # [depth, rows] expected tokens of a round, the root's row included; -inf where no tree is
    fans: IntArray  # [depth, rows] children of the root of such a tree
    splits: IntArray  # [depth, children, rows] rows that are left to the root and all but its last child

    def tree(self, rows: int, depth: int) -> list[Ranks]:
        """The paths of the best tree, root left out, parents first."""
        found: list[Ranks] = []
        rest: list[tuple[Ranks, int, int]] = [
            ((), rows, depth)
        ]  # subtrees to place: the path of their root, their rows and depth
        while rest:
            path, rows, depth = rest.pop()
            for rank in range(int(self.fans[depth, rows]) - 1, -1, -1):
                left = int(self.splits[depth, rank + 1, rows])
                rest.append(((*path, rank), rows - left, depth - 1))
                rows = left
            found += [path] if path else []
        return sorted(found, key=lambda path: (len(path), path))


@functools.lru_cache(maxsize=8)
def solve(vector: tuple[float, ...], nodes: int, depth: int) -> Table:
    """The dynamic programme for siblings that are accepted with these chances.

    F(l, b, m), the tokens of m rows under a root with b children and depth up to l, is the best over y of
    F(l, b - 1, y) + vector[b - 1] * G(l - 1, m - y), where G is the best F over b.
    """
    rows, width = nodes + 1, min(len(vector), nodes)
    tokens = np.full((depth + 1, rows + 1), -np.inf)
    fans = np.zeros((depth + 1, rows + 1), np.int64)
    splits = np.zeros((depth + 1, width + 1, rows + 1), np.int64)
    tokens[:, 1] = 1.0  # the root alone
    lags = np.arange(rows + 1)[:, None] - np.arange(rows + 1)  # [m, y] rows of the last child's subtree
    possible = (lags >= 1) & (np.arange(rows + 1) >= 1)
    for level in range(1, depth + 1):
        held = np.full(rows + 1, -np.inf)  # F of one child less, [rows]
        held[1] = 1.0
        for place in range(1, width + 1):
            below = max(vector[place - 1], TINY) * tokens[level - 1]
            sums = np.where(possible, held + below[np.maximum(lags, 0)], -np.inf)  # [m, y]
            splits[level, place] = sums.argmax(1)
            held = sums.max(1)
            better = held > tokens[level]
            tokens[level, better], fans[level, better] = held[better], place
    return Table(tokens, fans, splits)


def children(paths: list[Ranks]) -> list[int]:
    """Numbers of children, breadth first from the root on: what `sparse(children=...)` takes."""
    counts = Counter(path[:-1] for path in paths)
    found = [counts[path] for path in [(), *paths]]
    while found and not found[-1]:
        found.pop()
    return found
