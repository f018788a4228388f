"""The tree of one round, kept small enough for a record and whole enough for a picture."""

from dataclasses import dataclass

import numpy as np

from sapwood import pictures
from sapwood.records import Outcome, Verdict
from sapwood.tree import Tree

SHOWN = 64  # most nodes of a tree that is shown


@dataclass(frozen=True, slots=True)
class Sample:
    """A checked tree and what became of it."""

    tokens: list[int]
    parents: list[int]
    reach: list[float]
    path: list[int]
    bonus: int

    def drawn(self, words: pictures.Words) -> str:
        """The picture of the round."""
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        depths = np.zeros_like(parents)
        for node in range(1, len(parents)):
            depths[node] = depths[parents[node]] + 1
        reach = np.array(self.reach)
        tree = Tree.from_columns(tokens, parents, depths, reach, reach=reach)
        return pictures.draw(tree, Verdict(tuple(self.path), self.bonus), words)


def better(kept: Sample | None, outcome: Outcome) -> Sample | None:
    """The more telling one: of the longer accepted path, then of the larger tree."""
    tree, verdict = outcome.tree, outcome.verdict
    if not 1 < len(tree) <= SHOWN:
        return kept
    if kept is not None and (len(verdict.path), len(tree)) <= (len(kept.path), len(kept.tokens)):
        return kept
    reach = [round(value, 4) for value in pictures.reaches(tree)]
    path = [int(node) for node in verdict.path]
    return Sample(tree.tokens.tolist(), tree.parents.tolist(), reach, path, int(verdict.bonus))
