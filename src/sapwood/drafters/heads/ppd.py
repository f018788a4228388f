"""Parallel prompt decoding (arXiv 2405.18628): trained prompt tokens in the verifying pass.

The tree has candidates and, behind them, prompt tokens, which predict the tokens after the next.
A limited number of prompt tokens goes where they are worth most: behind nodes that are likely to be
the last accepted ones, and as many as lengthen the next tree.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.common.rank_table import measured, rank_tree, usual
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree
from sapwood.drafters.heads.lookahead_base import MarginalBase


@dataclass
class Ppd(MarginalBase):
    """Trained prompt tokens behind the nodes of the tree, in the pass that verifies it."""

    prompts: int = 48  # prompt tokens of a tree, >= 1

    paper: ClassVar[str] = "2405.18628"
    trained: ClassVar[str] = "ppd"

    def __post_init__(self) -> None:
        at_least(1, prompts=self.prompts)

    def bind(self, setting: EngineContext) -> None:
        """Load the prompt tokens, and how often each rank was right."""
        super().bind(setting)
        kind = self.head if isinstance(self.head, str) and self.head else self.trained
        table = measured(kind, setting.target.info) or usual()
        self.chances = [list(level) for level in table[: self.most]]

    def _counts(self, tree: Tree) -> IntArray:
        """The prompt tokens that are worth most, [nodes]; at least one behind the root."""
        gains = self.gains(len(tree) - 1)
        ends = self.last_accepted(tree)
        value = ends[:, None] * gains[None]  # [nodes, rows], falling along the rows
        value[0, 0] = np.inf
        order = np.argsort(-value, axis=None, kind="stable")[: self.prompts]
        found: IntArray = np.bincount(order // self.most, minlength=len(tree))
        return found

    def gains(self, nodes: int) -> FloatArray:
        """Expected accepted tokens that each further row adds to the next tree, [rows]."""
        lengths = [0.0]
        for rows in range(1, self.most + 1):
            level = self.chances[:rows]
            paths = rank_tree(level, max(nodes, rows))
            lengths.append(sum(chance_of(level, path) for path in paths))
        found: FloatArray = np.minimum.accumulate(np.diff(lengths))
        return found

    def last_accepted(self, tree: Tree) -> FloatArray:
        """Probability of each node to be the last accepted one, by its rank and depth, [nodes]."""
        reach = np.ones(len(tree))
        births: dict[int, int] = {}
        for node, parent in enumerate(tree.parents.tolist()[1:], 1):
            rank = births.get(parent, 0)
            births[parent] = rank + 1
            reach[node] = reach[parent] * chance(self.chances, int(tree.depths[node]) - 1, rank)
        ends = reach.copy()
        np.subtract.at(ends, tree.parents[1:], reach[1:])
        return np.maximum(ends, 0.0)


def chance(chances: Any, level: int, rank: int) -> float:
    """Share of right drafts of a rank at a level; 0 where nothing is known."""
    known = level < len(chances) and rank < len(chances[level])
    return float(chances[level][rank]) if known else 0.0


def chance_of(chances: Any, path: tuple[int, ...]) -> float:
    """Probability that a whole path of ranks is right."""
    return float(np.prod([chance(chances, level, rank) for level, rank in enumerate(path)]))
