"""Keep and grow the nodes that a trained classifier scores above a threshold, level by level.

C2T (arXiv 2502.13652): of each new level the nodes scored above a threshold stay, at most so many
of them, and only those get children. Its scores come from training on as many accepted as refused
nodes; the classifier here is calibrated, so the threshold is compared with the odds put back on
that scale.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.numpy_mlp import NumpyMlp, load
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.estimators.classified import KIND, passing


@dataclass
class C2t(Part):
    """Grow and keep the nodes that a trained classifier scores above a threshold."""

    # score that a node must exceed, where accepted and refused nodes are equally common
    least: float = 0.5
    level: int = 15  # most nodes kept per level
    weights: str = ""  # folder of the trained classifier; empty: the one trained for this model

    paper: ClassVar[str] = "2502.13652"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        between(0, 1, least=self.least)
        at_least(1, level=self.level)

    def bind(self, setting: EngineContext) -> None:
        """Load the classifier and the share of nodes that were accepted in its training."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.net: NumpyMlp = bundle.nets["classifier"]
        self.base = float(bundle.facts["base"])

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The nodes of the deepest level that pass."""
        if tree.height >= budget.depth:
            return []
        kept = set(self.survivors(tree))
        level = [
            node for node in tree.level(tree.height) if node in kept and not tree.expanded[node]
        ]
        return [(node, budget.width) for node in level]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that pass; of too many, those of the largest score."""
        tree.reach[:] = passing(tree, self.net)
        tree.valued = len(tree)
        best = sorted(self.survivors(tree)[1:], key=lambda node: -tree.reach[node])
        return tree.keep(best[: budget.nodes])

    def survivors(self, tree: Tree) -> list[int]:
        """The best nodes of each level that are above the threshold, as are their parents."""
        reach = passing(tree, self.net)
        score = balanced(reach, self.base)
        kept = {ROOT}
        for depth in range(1, tree.height + 1):
            level = [
                n
                for n in tree.level(depth)
                if score[n] > self.least and int(tree.parents[n]) in kept
            ]
            kept.update(sorted(level, key=lambda node: -reach[node])[: self.level])
        return sorted(kept)


def balanced(chance: FloatArray, base: float) -> FloatArray:
    """The probabilities as they would be if the share of positives were 1/2 instead of `base`."""
    yes = chance * (1 - base)
    no = (1 - chance) * base
    found: FloatArray = yes / (yes + no)
    return found
