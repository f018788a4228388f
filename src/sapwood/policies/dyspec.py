"""Best-first growth by the probability that a place for a child is tested, before it is drawn.

DySpec (arXiv 2410.11744): each node has one open place for a further child, valued by the chance
that verification comes to test it. The most valuable place is filled, which opens the next one
beside it and a first one below. A place is valued before its token is drawn, so that drafts without
replacement keep the target's distribution; pruning by the drawn tokens' own probability, as for
chosen drafts, would not. A drafter here expands a node once, so its children are drawn together and
then used one by one. Filling place by place takes a draft call for almost every node; with a
threshold, the paper's second algorithm, all places above it are filled level by level, with one
call each. The paper drafts at temperature 0.6; here the request's sampling options are used.
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.policies.open_slots import families, places


@dataclass
class DySpec(Part):
    """Fill the place for a child that verification is most likely to reach next."""

    # chance of being reached below which a place stays empty; about 1 / nodes
    threshold: float = 0.0
    stride: int = 1  # nodes drafted at a time, >= 1; many with a threshold, one without

    paper: ClassVar[str] = "2410.11744"
    prunes: ClassVar[Prune] = Prune.GROUPS  # and the last siblings of one, by the tokens before

    def __post_init__(self) -> None:
        between(0, 1, threshold=self.threshold)
        at_least(1, stride=self.stride)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The nodes whose children are wanted next."""
        _, wanted = self.fill(tree, budget, self.stride)
        return [(node, budget.width) for node in wanted]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The places that were filled."""
        tree.reach[:], tree.valued = places(tree)[1], len(tree)
        kept, _ = self.fill(tree, budget, len(tree))
        return tree if len(kept) == len(tree) - 1 else tree.keep(kept)

    def fill(self, tree: Tree, budget: Budget, wants: int) -> tuple[list[int], list[int]]:
        """Nodes in the order their places are filled, and up to `wants` nodes to expand next."""
        (place, through), children = places(tree), families(tree)
        kept: list[int] = []
        wanted: list[int] = []
        # (minus the value of a place, its parent node, index of the child)
        heap: list[tuple[float, int, int]] = []

        def open_place(node: int, index: int) -> None:
            if not tree.expanded[node] and tree.depths[node] < budget.depth:
                heapq.heappush(heap, (-through[node], node, 0))
            elif index < len(children[node]):
                heapq.heappush(heap, (-place[children[node][index]], node, index))

        open_place(ROOT, 0)
        while heap and len(kept) < budget.nodes and len(wanted) < wants:
            worth, node, index = heapq.heappop(heap)
            if -worth < max(self.threshold, budget.floor):
                break
            if tree.expanded[node]:
                kept.append(children[node][index])
                open_place(kept[-1], 0)
                open_place(node, index + 1)
            elif -worth > budget.draft:
                wanted.append(node)
        return kept, wanted
