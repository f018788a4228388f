"""A chain that ends before its first doubtful token, where several branches are drafted on.

SpecBranch (arXiv 2506.01979) hedges PEARL's draft. Only tokens that the draft model is sure of are
sent to the target, since a refused one would cost all that was drafted behind it. At the first
doubtful token b the draft forks into k = max(1, floor(most (1 - q(b)))) branches of its best
tokens, which grow together while the target checks the tokens before; the target's own token
behind those picks the branch. The paper decides by a trained network over the target's states
beforehand where to fork; here the confidence decides alone. Its public code tests the branches at
temperatures above 0 by a rule for drawn tokens, which is not exact for chosen ones.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.policies.chain import first_path
from sapwood.policies.pearl import Pearl


@dataclass
class SpecBranch(Pearl):
    """A chain up to its first doubtful token, and branches from there, beside the target's pass."""

    confidence: float = 0.4  # probability below which a token is doubtful
    most: int = 4  # branches, >= 1

    paper: ClassVar[str] = "2506.01979"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(0, 1, confidence=self.confidence)
        at_least(1, most=self.most)

    def sent(self, tree: Tree, budget: Budget) -> list[int]:
        """The chain before its first doubtful token, as far as the budget allows."""
        path = list[int]()
        for node in super().sent(tree, budget):
            if tree.probs[node] < self.confidence:
                break
            path.append(node)
        return path

    def ahead(self, tree: Tree, tip: int, depth: int) -> Frontier:
        """The ends of all branches; the last sent node, if it has no children yet."""
        if not tree.expanded[tip]:
            return [(tip, self.most)] if tree.depths[tip] < depth else []
        ends = [
            branch_end(tree, child) for child in tree.children(tip)[: self._branches(tree, tip)]
        ]
        return [
            (end, self.most) for end in ends if not tree.expanded[end] and tree.depths[end] < depth
        ]

    def _branches(self, tree: Tree, tip: int) -> int:
        """Branches behind this node, by the probability of the best."""
        children = tree.children(tip)
        doubt = 1.0 - float(tree.probs[children[0]]) if children else 0.0
        return max(1, math.floor(self.most * doubt))

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The path of first children alone."""
        path = first_path(tree)[: 1 + min(budget.depth, budget.nodes)]
        return tree if len(path) == len(tree) else tree.keep(path)


def branch_end(tree: Tree, node: int) -> int:
    """The last of the first children below a node."""
    while children := tree.children(node):
        node = children[0]
    assert node != ROOT
    return node
