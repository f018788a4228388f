"""A fixed sparse tree: paths of ranks that are right most often.

Medusa (arXiv 2401.10774, section 2.3.3) measures how often the draft of each rank is right at each
depth, and adds the node whose path is right most often until the tree is full. Where siblings are
tried in the order of their ranks such a tree only has a number of children at each node, known
before anything is drawn, so that drafts of every kind keep the target's distribution.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.rank_table import Ranks, measured, rank_tree, usual
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.errors import SapwoodError
from sapwood.policies.static import upper_levels


class RankTree(Part):
    """A tree of paths of ranks that is known before it is grown."""

    prunes: ClassVar[Prune] = Prune.GROUPS

    def _within(self, budget: Budget) -> list[Ranks]:
        """The tree, as far as the budget allows."""
        raise NotImplementedError

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The nodes of the deepest level that have children in the tree."""
        if tree.height >= budget.depth:
            return []
        wanted = Counter(path[:-1] for path in self._within(budget))
        places = {node: wanted[ranks] for node, ranks in named(tree).items() if ranks in wanted}
        deepest = [
            node for node in tree.level(tree.height) if not tree.expanded[node] and node in places
        ]
        return [(node, places[node]) for node in deepest]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Drop the deepest levels if drafters that share the tree added more than the budget."""
        return upper_levels(tree, budget.nodes)


@dataclass
class RankPaths(RankTree):
    """A fixed tree: the paths of ranks that are right most often."""

    nodes: int = 63  # of the tree, root not counted, >= 1
    # kind of trained head, or its folder, that holds how often each rank is right
    head: str = "medusa"
    # the tree itself, breadth first, instead of the two above
    children: list[int] = field(default_factory=list)

    paper: ClassVar[str] = "2401.10774"

    def __post_init__(self) -> None:
        at_least(1, nodes=self.nodes)
        at_least(0, **{f"children[{index}]": count for index, count in enumerate(self.children)})

    def bind(self, setting: EngineContext) -> None:
        """Find the tree for this target."""
        if self.children:
            self.paths = breadth_first(self.children)
        else:
            self.paths = rank_tree(measured(self.head, setting.target.info) or usual(), self.nodes)

    def _within(self, budget: Budget) -> list[Ranks]:
        """The first paths of the tree, as many as the budget allows."""
        able = [
            path for path in self.paths if len(path) <= budget.depth and max(path) < budget.width
        ]
        return able[: budget.nodes]


def breadth_first(children: Sequence[int]) -> list[Ranks]:
    """The paths of a tree given as child counts in breadth-first order; missing counts are 0."""
    paths: list[Ranks] = [()]
    for parent, count in enumerate(children):
        if parent >= len(paths):
            raise SapwoodError(
                f"children={list(children)} of sparse go on after the last node of the tree; "
                f"leave out what follows the first {parent}"
            )
        paths += [(*paths[parent], rank) for rank in range(count)]
    return paths[1:]


def named(tree: Tree) -> dict[int, Ranks]:
    """The path of sibling ranks that leads to each node."""
    found: dict[int, Ranks] = {ROOT: ()}
    births: Counter[int] = Counter()
    for node, parent in enumerate(tree.parents.tolist()[1:], 1):
        found[node] = (*found[parent], births[parent])
        births[parent] += 1
    return found
