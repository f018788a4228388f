"""Keep and grow the nodes that a trained classifier lets pass, level by level.

C2T (arXiv 2502.13652): of each new level the nodes scored above a threshold stay, at most so many of
them, and only those get children. Its scores come from training on as many accepted as refused nodes;
the classifier here is calibrated, so the threshold is compared with the odds put back on that scale.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.arrays import FloatArray
from sapwood.estimators.c2t import KIND, passing
from sapwood.nets import Net, load
from sapwood.part import Part, at_least, between
from sapwood.protocols import Frontier, Setting
from sapwood.records import Budget, Prune
from sapwood.tree import ROOT, Tree


@dataclass
class C2t(Part):
    """Grow and keep the nodes that a trained classifier scores above a threshold."""

    least: float = 0.5  # score that a node must exceed, where accepted and refused nodes are equally common
    level: int = 15  # most nodes kept per level
    weights: str = ""  # folder of the trained classifier; empty: the one trained for this model

    paper: ClassVar[str] = "2502.13652"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        between(0, 1, least=self.least)
        at_least(1, level=self.level)

    def bind(self, setting: Setting) -> None:
        """Load the classifier and the share of nodes that were accepted in its training."""
        bundle = load(self.weights, KIND, setting.target.info.model)
        self.net: Net = bundle.nets["classifier"]
        self.base = float(bundle.facts["base"])

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The nodes of the deepest level that pass."""
        if tree.height >= budget.depth:
            return []
        kept = set(self.survivors(tree))
        level = [node for node in tree.level(tree.height) if node in kept and not tree.expanded[node]]
        return [(node, budget.width) for node in level]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that pass; of too many, those of the largest score."""
        tree.reach[:] = passing(tree, self.net)
        tree.valued = len(tree)
        best = sorted(self.survivors(tree)[1:], key=lambda node: -tree.reach[node])
        return tree.keep(best[: budget.nodes])

    def survivors(self, tree: Tree) -> list[int]:
        """The nodes above the threshold, the best of each level; parents always come with their children."""
        reach = passing(tree, self.net)
        score = balanced(reach, self.base)
        kept = {ROOT}
        for depth in range(1, tree.height + 1):
            level = [n for n in tree.level(depth) if score[n] > self.least and int(tree.parents[n]) in kept]
            kept.update(sorted(level, key=lambda node: -reach[node])[: self.level])
        return sorted(kept)


def balanced(chance: FloatArray, base: float) -> FloatArray:
    """A chance as it would be if `base`, the share of yes, were one half."""
    yes, no = chance * (1 - base), (1 - chance) * base
    found: FloatArray = yes / (yes + no)
    return found
