"""The best tree for measured acceptance rates and costs, by dynamic programming.

Sequoia (arXiv 2402.12374): measure how often the first, second, ... of the siblings tested is the
accepted one, the same at every node. A tree of m nodes splits into its root with one child less and
the subtree of the last child, so the expected tokens of the best trees follow from those of smaller
ones. Among all sizes and depths the one with the most tokens for its seconds is grown. The shape
depends on no token, so that drafts of every kind keep the target's distribution. The paper measures
beforehand with wide trees; here every round counts, and a default vector fills in for what was not
tried. Greedy and sampled decoding are counted apart.
"""

import functools
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sapwood.common.rank_table import Ranks
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.types import Budget, Outcome
from sapwood.policies.draft_cost_fit import DraftCostFit
from sapwood.policies.rank_acceptance import RankAcceptance, RankAcceptanceFile
from sapwood.policies.rank_paths import RankTree

# stands in for a chance of zero, which a tree that does not exist must not be multiplied by
TINY = 1e-12
Shape = tuple[tuple[float, ...], int, int]  # what is solved: acceptance, nodes, depth


@dataclass
class Sequoia(RankTree):
    """The tree of most expected tokens for measured acceptance, in the size that pays best."""

    # name under which acceptance is stored from run to run, one for each drafter; empty: not stored
    store: str = ""
    every: int = 16  # rounds after which the tree is found anew, >= 1

    paper: ClassVar[str] = "2402.12374"

    def __post_init__(self) -> None:
        at_least(1, every=self.every)

    def bind(self, setting: EngineContext) -> None:
        """Load the acceptance counts; they are shared by all requests."""
        self.book = RankAcceptanceFile(setting.target.info.model, self.store)
        self.pace = DraftCostFit()
        # the last tree of greedy and of sampled decoding, as numbers of children
        self.trees: dict[str, list[int]] = {}

    def reset(self, request: RequestContext) -> None:
        """Select the counts of greedy or of sampled decoding."""
        self.way_ = "greedy" if request.sampler.sampling.greedy else "sampled"
        self.record_: RankAcceptance = self.book.records[self.way_]
        self.shape_: Shape = (), 0, 0
        self.begun_ = False

    def _within(self, budget: Budget) -> list[Ranks]:
        """The tree of most expected tokens over its price."""
        stale = not self.shape_[0] or self.record_.rounds % self.every == 0
        vector = self.record_.vector(budget.width) if stale else self.shape_[0][: budget.width]
        self.shape_ = vector, max(self.shape_[1], budget.nodes), max(self.shape_[2], budget.depth)
        table = solve(*self.shape_)
        size, depth = choose(table.tokens, budget, self.pace.each)
        paths = table.tree(size, depth)
        self.trees[self.way_] = children(paths) or self.trees.get(self.way_, [])
        return paths

    def observe(self, outcome: Outcome) -> None:
        """Count the tests and time the drafting."""
        self.record_.observe(outcome)
        if self.begun_:  # a request's first round includes the drafter's prefill
            self.pace.observe(outcome)
        self.begun_ = True

    def close(self) -> None:
        """Save the counts, after enough new rounds."""
        self.book.save(self.trees)


def choose(tokens: FloatArray, budget: Budget, level: float) -> tuple[int, int]:
    """Rows (with the root) and depth of most tokens over their price; `tokens` is [depth, rows]."""
    able = tokens[: budget.depth + 1, : budget.nodes + 2].copy()
    if budget.price is not None:
        able[:, 1:] -= budget.price[: able.shape[1] - 1]
    able -= budget.rate * level * np.arange(len(able))[:, None]
    depth, rows = np.unravel_index(int(np.argmax(able)), able.shape)
    return int(rows), int(depth)


class SequoiaTable(NamedTuple):
    """The best trees of all sizes and depths."""

    # [depth, rows] expected tokens of a round, the root's row included; -inf where no tree is
    tokens: FloatArray
    fans: IntArray  # [depth, rows] children of the root of such a tree
    # [depth, children, rows] rows that are left to the root and all but its last child
    splits: IntArray

    def tree(self, rows: int, depth: int) -> list[Ranks]:
        """The paths of the best tree, root left out, parents first."""
        found: list[Ranks] = []
        # subtrees to place: the path of their root, their rows and depth
        rest: list[tuple[Ranks, int, int]] = [((), rows, depth)]
        while rest:
            path, rows, depth = rest.pop()
            for rank in range(int(self.fans[depth, rows]) - 1, -1, -1):
                left = int(self.splits[depth, rank + 1, rows])
                rest.append(((*path, rank), rows - left, depth - 1))
                rows = left
            found += [path] if path else []
        return sorted(found, key=lambda path: (len(path), path))


@functools.lru_cache(maxsize=8)
def solve(vector: tuple[float, ...], nodes: int, depth: int) -> SequoiaTable:
    """The dynamic programme for siblings that are accepted with these chances.

    F(l, b, m), the tokens of m rows under a root with b children and depth up to l, is the best
    over y of F(l, b - 1, y) + vector[b - 1] * G(l - 1, m - y), where G is the best F over b.
    """
    rows = nodes + 1
    width = min(len(vector), nodes)
    tokens = np.full((depth + 1, rows + 1), -np.inf)
    fans = np.zeros((depth + 1, rows + 1), np.int64)
    splits = np.zeros((depth + 1, width + 1, rows + 1), np.int64)
    tokens[:, 1] = 1.0  # the root alone
    # [m, y] rows of the last child's subtree
    lags = np.arange(rows + 1)[:, None] - np.arange(rows + 1)
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
    return SequoiaTable(tokens, fans, splits)


def children(paths: list[Ranks]) -> list[int]:
    """Child counts in breadth-first order from the root, as `sparse(children=...)` takes them."""
    counts = Counter(path[:-1] for path in paths)
    found = [counts[path] for path in [(), *paths]]
    while found and not found[-1]:
        found.pop()
    return found
