"""The tree of one round, in the form that a record keeps and a picture is drawn from."""

from dataclasses import dataclass

import numpy as np

from sapwood.common import tree_svg
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, Verdict

SHOWN = 64  # most nodes of a tree that is kept


@dataclass(frozen=True, slots=True)
class TreeSample:
    """A verified tree with its accepted path and bonus."""

    tokens: list[int]
    parents: list[int]
    reach: list[float]
    path: list[int]
    bonus: int

    def drawn(self, words: tree_svg.Spell) -> str:
        """The round as SVG."""
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        depths = np.zeros_like(parents)
        for node in range(1, len(parents)):
            depths[node] = depths[parents[node]] + 1
        reach = np.array(self.reach)
        tree = Tree.from_columns(tokens, parents, depths, reach, reach=reach)
        return tree_svg.draw(tree, Verdict(tuple(self.path), self.bonus), words)


def better(kept: TreeSample | None, outcome: Outcome) -> TreeSample | None:
    """The sample with the longer accepted path, then with the larger tree."""
    tree, verdict = outcome.tree, outcome.verdict
    if not 1 < len(tree) <= SHOWN:
        return kept
    if kept is not None and (len(verdict.path), len(tree)) <= (len(kept.path), len(kept.tokens)):
        return kept
    reach = [round(value, 4) for value in tree_svg.reaches(tree)]
    path = [int(node) for node in verdict.path]
    return TreeSample(tree.tokens.tolist(), tree.parents.tolist(), reach, path, int(verdict.bonus))
