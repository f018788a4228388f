"""Draft a graph: where two branches come to say the same, one of them is drafted and both go on with it.

GSD (arXiv 2407.16207). The inner drafter grows a tree of its own. A node that ends in the same few tokens as a node of
another branch becomes that node, and so is never drafted itself; what the target checks is the graph unrolled into a
tree again, since a token's keys depend on all that stands before it. Siblings far less likely than the best are left
out. The authors' code remembers one such link per node, and judges with p / q and no residual when it samples; here a
node has as many links as it needs, and guesses are chosen, so that any verifier for chosen tokens judges them.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.drafters.follow import chosen
from sapwood.drafters.small import Small
from sapwood.part import Part, at_least, between
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Draw
from sapwood.rng import Rng
from sapwood.tree import CAPACITY, ROOT, Tree


class Graph:
    """What was drafted, as a tree whose nodes may also stand for nodes of other branches."""

    def __init__(self, root: int, repeat: int) -> None:
        self.drafted, self.repeat = Tree(root), repeat
        self.ends: dict[tuple[int, ...], list[int]] = {}  # last tokens -> nodes that end so
        self.nodes: dict[int, int] = {ROOT: ROOT}  # node of the unrolled tree -> node here
        self.meant: list[int] = []  # node -> the node it stands for, itself or one of another branch
        self.settle()

    def settle(self) -> None:
        """Decide for each new node whether another branch has it already."""
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
    """A drafter's guesses as a graph: branches that come to say the same are drafted once."""

    drafter: Drafter = field(default_factory=Small)
    repeat: int = 2  # tokens in a row by which two nodes are the same, >= 1
    sibling: float = 0.2  # least chance of a child relative to its best sibling's, 0 to 1

    paper: ClassVar[str] = "2407.16207"

    def __post_init__(self) -> None:
        at_least(1, repeat=self.repeat)
        between(0, 1, sibling=self.sibling)

    @property
    def draws(self) -> Draw:
        """Chosen tokens alone."""
        return chosen(self, self.drafter)

    @property
    def needs(self) -> frozenset[str]:
        """What the drafter needs."""
        return self.drafter.needs

    @property
    def fan(self) -> int:
        """As the drafter."""
        return self.drafter.fan

    def bind(self, setting: Setting) -> None:
        """Load the drafter."""
        self.drafter.source = self.source
        super().bind(setting)

    def reset(self, request: Request) -> None:
        """Begin without a graph."""
        super().reset(request)
        self.tree_: Tree | None = None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Draft what no branch has drafted, and unroll the children of every node that was asked about."""
        if tree is not self.tree_:
            self.tree_, self.graph_ = tree, Graph(int(tree.tokens[ROOT]), self.repeat)
        graph, drafted = self.graph_, self.graph_.drafted
        places = [(node, width, self._place(tree, node)) for node, width in frontier]
        fresh = {place: width for _, width, place in places if place is not None and not drafted.expanded[place]}
        if len(drafted) + sum(fresh.values()) * self.fan <= CAPACITY:
            self.drafter.expand(drafted, list(fresh.items()), rng)
            for one in fresh:
                drafted.close(one)
            graph.settle()
        for node, width, place in places:
            if place is not None:
                self._unroll(tree, node, width, place)

    def _place(self, tree: Tree, node: int) -> int | None:
        """The node of the graph that a node of the tree stands for; None where another drafter proposed it."""
        if node not in self.graph_.nodes:
            before = self._place(tree, int(tree.parents[node]))
            child = None if before is None else self.graph_.drafted.child(before, int(tree.tokens[node]))
            if child is None:
                return None
            self.graph_.nodes[node] = self.graph_.meant[child]
        return self.graph_.nodes[node]

    def _unroll(self, tree: Tree, node: int, width: int, place: int) -> None:
        """Copy the children of a graph's node, those that are likely enough."""
        children = np.array(self.graph_.drafted.children(place), np.int64)
        probs = self.graph_.drafted.probs[children]
        children = children[probs >= self.sibling * probs.max(initial=0.0)][: width * self.fan]
        tokens, probs = self.graph_.drafted.tokens[children], self.graph_.drafted.probs[children]
        tree.extend(node, tokens.tolist(), probs.tolist(), source=self.source)
