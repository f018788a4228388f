"""Drafts a token graph: branches that end in the same tokens share one continuation.

GSD (arXiv 2407.16207). The inner drafter grows a tree of its own. A node that ends in the same few
tokens as a node of another branch is linked to that node and not expanded itself. The target
verifies the graph unrolled into a tree, since keys and values of a token depend on all tokens
before it. Siblings far less likely than the best are dropped. The authors' code keeps one link for
each node, and accepts sampled tokens by p / q without a residual; here nodes have as many links as
they need, and tokens are chosen, so that any verifier for chosen tokens can be used.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Draw
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.lookup.lookup_base import chosen


class DraftGraph:
    """The drafted tree, with links between nodes of different branches."""

    def __init__(self, root: int, repeat: int) -> None:
        self.drafted = Tree(root)
        self.repeat = repeat
        self.ends: dict[tuple[int, ...], list[int]] = {}  # last tokens -> nodes that end so
        self.nodes: dict[int, int] = {ROOT: ROOT}  # node of the unrolled tree -> node here
        # node -> the node it stands for, itself or one of another branch
        self.meant: list[int] = []
        self.settle()

    def settle(self) -> None:
        """Link each new node to a node of another branch that ends in the same tokens."""
        for node in range(len(self.meant), len(self.drafted)):
            path = self.drafted.path(node)
            key = tuple(self.drafted.tokens[path[-self.repeat :]].tolist())
            alike = self.ends.get(key, []) if len(path) >= self.repeat else []
            other = next((one for one in alike if one not in path), node)
            self.meant.append(other)
            if other == node:
                self.ends.setdefault(key, []).append(node)


@dataclass
class Gsd(Part):
    """A drafter's tree as a graph: branches that end in the same tokens are drafted once."""

    drafter: Drafter = field(default_factory=AutoDraftModel)
    repeat: int = 2  # last tokens that must be equal for two nodes to be linked, >= 1
    sibling: float = 0.2  # least probability of a child relative to its best sibling's, 0 to 1

    paper: ClassVar[str] = "2407.16207"

    def __post_init__(self) -> None:
        at_least(1, repeat=self.repeat)
        between(0, 1, sibling=self.sibling)

    @property
    def draws(self) -> Draw:
        """Chosen tokens only."""
        return chosen(self, self.drafter)

    @property
    def needs(self) -> frozenset[str]:
        """The drafter's needs."""
        return self.drafter.needs

    @property
    def fan(self) -> int:
        """The drafter's fan."""
        return self.drafter.fan

    def bind(self, setting: EngineContext) -> None:
        """Load the drafter."""
        self.drafter.source = self.source
        super().bind(setting)

    def reset(self, request: RequestContext) -> None:
        """Begin without a graph."""
        super().reset(request)
        self.tree_: Tree | None = None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Draft new nodes of the graph, and unroll the children of the frontier."""
        if tree is not self.tree_:
            self.tree_ = tree
            self.graph_ = DraftGraph(int(tree.tokens[ROOT]), self.repeat)
        graph, drafted = self.graph_, self.graph_.drafted
        places = [(node, width, self._place(tree, node)) for node, width in frontier]
        fresh = {
            place: width
            for _, width, place in places
            if place is not None and not drafted.expanded[place]
        }
        if len(drafted) + sum(fresh.values()) * self.fan <= CAPACITY:
            self.drafter.expand(drafted, list(fresh.items()), rng)
            for one in fresh:
                drafted.close(one)
            graph.settle()
        for node, width, place in places:
            if place is not None:
                self._unroll(tree, node, width, place)

    def _place(self, tree: Tree, node: int) -> int | None:
        """The graph's node of a node of the tree; None if another drafter proposed it."""
        if node not in self.graph_.nodes:
            before = self._place(tree, int(tree.parents[node]))
            child = (
                None
                if before is None
                else self.graph_.drafted.child(before, int(tree.tokens[node]))
            )
            if child is None:
                return None
            self.graph_.nodes[node] = self.graph_.meant[child]
        return self.graph_.nodes[node]

    def _unroll(self, tree: Tree, node: int, width: int, place: int) -> None:
        """Copy the children of a node of the graph that are likely enough."""
        children = np.array(self.graph_.drafted.children(place), np.int64)
        probs = self.graph_.drafted.probs[children]
        children = children[probs >= self.sibling * probs.max(initial=0.0)][: width * self.fan]
        tokens = self.graph_.drafted.tokens[children]
        probs = self.graph_.drafted.probs[children]
        tree.extend(node, tokens.tolist(), probs.tolist(), source=self.source)
