"""Grow and prune whole sibling groups, by what is known before they are drawn.

The one kind of dynamic tree that keeps every q-rule exact on sampled drafts: whether a group of
siblings is drawn, or kept, depends on the reach of its parent, never on its own tokens. DySpec
(arXiv 2410.11744) states the rule; predictable slots are its section 4.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import Part, between
from sapwood.core.protocols import Estimator, Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.estimators.raw import Raw
from sapwood.policies.reach import value


@dataclass
class Groups(Part):
    """Expand nodes of enough reach; prune whole groups of the least likely parents."""

    floor: float = 0.05  # least reach of a node that gets children, 0 to 1
    estimator: Estimator = field(default_factory=Raw)

    paper: ClassVar[str] = "2410.11744"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        between(0, 1, floor=self.floor)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """Likely nodes of the deepest level, while their groups fit the budget."""
        if tree.height >= budget.depth:
            return []
        reach = value(tree, self.estimator)
        room = max(0, budget.nodes - len(tree) + 1) // budget.width
        floor = max(self.floor, budget.width * budget.floor)
        able = [
            node
            for node in tree.level(tree.height)
            if not tree.expanded[node] and reach[node] >= floor
        ]
        return [(node, budget.width) for node in sorted(able, key=lambda node: -reach[node])[:room]]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Groups in order of their parents' reach, until the next one does not fit."""
        if len(tree) - 1 <= budget.nodes:
            return tree
        reach = value(tree, self.estimator)
        kept = {ROOT}
        for parent in sorted(range(len(tree)), key=lambda node: -reach[node]):
            group = tree.children(parent)
            if parent not in kept or len(kept) - 1 + len(group) > budget.nodes:
                break
            kept.update(group)
        return tree.keep(kept)
