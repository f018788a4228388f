"""A token tree as a struct of arrays in topological order.

Node 0 is the root: the last emitted token, whose keys the target has not computed yet. Every
other node names its parent, and parents[i] < i. Masks, positions and sequence ids are derived
from the parents where they are used; a node's position is its depth, never its index.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sapwood.core.array_types import BoolArray, FloatArray, IntArray

CAPACITY = 1024  # most nodes a tree may hold, root included
# sources from here on are hints of the request, not drafters: its grammar, its prediction
HINTS = 28
HINT_NAMES = {HINTS: "grammar", HINTS + 1: "prediction"}
ROOT = 0
# columns of a tree of its root alone
BEFORE = np.full(1, -1)
NONE = np.zeros(1, np.int64)
CERTAIN = np.ones(1)
FALSE = np.zeros(1, bool)
for _column in (BEFORE, NONE, CERTAIN, FALSE):
    _column.flags.writeable = False


class Tree:
    """Tokens and parents, with the drafters' probabilities of each node."""

    on_device = False  # True where its columns lie on a device until they are read

    def __init__(self, root: int, capacity: int = 64) -> None:
        self._size = 0
        self._known = True  # `_chosen` is complete
        self._allocate(min(capacity, CAPACITY))
        self._begin()
        self._append(root, -1, 1.0, 0, 0, False)

    def _begin(self) -> None:
        """Set the attributes besides the columns."""
        # (node, source) -> q of its sampled children
        self.proposals: dict[tuple[int, int], FloatArray] = {}
        # True: drafters store q in `proposals` for chosen children too
        self.keeps_probs = False
        # True for a lookahead: the part behind the emitted text is the next round's tree
        self.ahead = False
        # expanded node -> hidden state of a trained drafter there, [width]
        self.states: dict[int, Any] = {}
        # (parent, token) -> the chosen child with this token
        self._chosen: dict[tuple[int, int], int] = {}
        # [n] index of each node in the tree from which this one was pruned
        self.kept: IntArray | None = None
        # True: all nodes came with one call, whose time does not depend on their number
        self.one_call = False
        # the tree to verify, when the drafter has pruned already
        self.pruned: Tree | None = None
        # a budget and the tree that pays under it, when the drafter has found it
        self.priced: tuple[Any, Tree] | None = None

    @classmethod
    def from_columns(
        cls,
        tokens: IntArray,  # [n], as are all; the root first and parents before their children
        parents: IntArray,
        depths: IntArray,
        probs: FloatArray,
        *,
        reach: FloatArray | None = None,  # None: not valued yet
        ranks: IntArray | None = None,
        sources: IntArray | None = None,  # bit sets; None: source 0 proposed all
        expanded: BoolArray | None = None,
        kept: IntArray | None = None,
    ) -> "Tree":
        """A tree of chosen nodes from whole columns, which become its own."""
        tree = cls.__new__(cls)
        tree._begin()
        tree._size = size = len(tokens)
        tree._tokens = tokens
        tree._parents = parents
        tree._depths = depths
        tree._probs = probs
        tree._reach = np.ones(size) if reach is None else reach
        tree.valued = 1 if reach is None else size
        tree._ranks = np.zeros(size, np.int64) if ranks is None else ranks
        tree._sources = (depths > 0).astype(np.int64) if sources is None else sources
        tree._sampled = np.zeros(size, bool)
        tree._expanded = np.zeros(size, bool) if expanded is None else expanded
        tree._known = False  # chosen children are looked up when a child is first added
        tree.kept = kept
        return tree

    @classmethod
    def of_root(cls, token: int) -> "Tree":
        """A tree of its root alone, made fast; its columns are copied when a node is added."""
        tree = cls.__new__(cls)
        tree._begin()
        tree._size = 1
        tree._known = True
        tree._chosen[-1, token] = ROOT
        tree._tokens = np.array([token])
        tree._parents = BEFORE
        tree._depths = tree._ranks = tree._sources = NONE
        tree._probs = CERTAIN
        tree._reach = CERTAIN.copy()  # policies write it
        tree._sampled = tree._expanded = FALSE
        tree.valued = 1
        return tree

    def _allocate(self, capacity: int) -> None:
        self._tokens, self._parents, self._depths, self._ranks, self._sources = np.zeros(
            (5, capacity), np.int64
        )
        self._probs: FloatArray
        self._reach: FloatArray
        self._probs, self._reach = np.ones((2, capacity))
        self._sampled, self._expanded = np.zeros((2, capacity), bool)
        self.valued = 1  # nodes below this index have their reach

    def _grow(self) -> None:
        if self._size >= CAPACITY:
            raise ValueError(f"a tree holds at most {CAPACITY} nodes; lower the budget")
        more = min(CAPACITY, 2 * self._size)
        for name in (
            "tokens",
            "parents",
            "depths",
            "ranks",
            "sources",
            "probs",
            "reach",
            "sampled",
            "expanded",
        ):
            setattr(self, f"_{name}", np.resize(getattr(self, f"_{name}"), more))

    def _append(
        self, token: int, parent: int, prob: float, rank: int, source: int, sampled: bool
    ) -> int:
        node = self._size
        if node >= len(self._tokens):
            self._grow()
        self._tokens[node] = token
        self._parents[node] = parent
        self._depths[node] = self._depths[parent] + 1 if node else 0
        self._probs[node] = prob
        self._ranks[node] = rank
        self._sources[node] = 1 << source if node else 0
        self._sampled[node] = sampled
        self._expanded[node] = False
        if not sampled:
            self._chosen[parent, token] = node
        self._size += 1
        return node

    def __len__(self) -> int:
        return self._size

    @property
    def drafting(self) -> float:
        """Seconds that the device went on drafting after the tree was returned."""
        return 0.0

    def load(self) -> None:
        """Copy the columns to the host; does nothing for a tree on the host."""

    # ------------------------------------------------------------------ columns, each of length n
    @property
    def tokens(self) -> IntArray:
        """Token of each node."""
        return self._tokens[: self._size]

    @property
    def parents(self) -> IntArray:
        """Parent of each node; -1 for the root."""
        return self._parents[: self._size]

    @property
    def depths(self) -> IntArray:
        """Distance of each node from the root."""
        return self._depths[: self._size]

    @property
    def ranks(self) -> IntArray:
        """Place of each node among the siblings of its source, best or first drawn = 0."""
        return self._ranks[: self._size]

    @property
    def sources(self) -> IntArray:
        """Bit set of the drafters that proposed each node; 0 for the root."""
        return self._sources[: self._size]

    @property
    def probs(self) -> FloatArray:
        """Draft probability q of each node given its parent."""
        return self._probs[: self._size]

    @property
    def reach(self) -> FloatArray:
        """Estimated chance that each node is accepted; filled by a policy's estimator."""
        return self._reach[: self._size]

    @property
    def sampled(self) -> BoolArray:
        """True for nodes drawn at random from q, False for chosen ones."""
        return self._sampled[: self._size]

    @property
    def expanded(self) -> BoolArray:
        """True for nodes that drafters have expanded."""
        return self._expanded[: self._size]

    # ------------------------------------------------------------------------------- growing
    def add(
        self,
        parent: int,
        token: int,
        prob: float,
        *,
        rank: int = 0,
        source: int = 0,
        sampled: bool = False,
    ) -> int:
        """Add a child, or add source and probability to a chosen child with this token."""
        twin = None if sampled else self._twins().get((parent, token))
        if twin is not None:
            self._sources[twin] |= 1 << source
            # it is enough that either drafter is right
            self._probs[twin] += (1.0 - self._probs[twin]) * prob
            return twin
        return self._append(token, parent, prob, rank, source, sampled)

    def _twins(self) -> dict[tuple[int, int], int]:
        """The chosen children by parent and token; of twins the first."""
        if not self._known:
            chosen = zip(
                self.parents.tolist(), self.tokens.tolist(), self.sampled.tolist(), strict=True
            )
            for node, (parent, token, sampled) in enumerate(chosen):
                if not sampled:
                    self._chosen.setdefault((parent, token), node)
            self._known = True
        return self._chosen

    def extend(
        self, parent: int, tokens: Sequence[int], probs: Sequence[float], *, source: int = 0
    ) -> list[int]:
        """Add chosen children, best first, and return them."""
        return [
            self.add(parent, token, prob, rank=rank, source=source)
            for rank, (token, prob) in enumerate(zip(tokens, probs, strict=True))
        ]

    def close(self, node: int) -> None:
        """Mark a node as expanded."""
        self._expanded[node] = True

    # ------------------------------------------------------------------------------- reading
    @property
    def height(self) -> int:
        """Depth of the deepest node."""
        deepest: int = max(self.depths.tolist())  # of few nodes: a list is faster
        return deepest

    def children(self, node: int) -> list[int]:
        """Children in the order they were added."""
        return np.flatnonzero(self.parents == node).tolist()

    def child(self, node: int, token: int) -> int | None:
        """First child with this token."""
        if self._size == 1:
            return None
        found = np.flatnonzero((self.parents == node) & (self.tokens == token))
        return int(found[0]) if len(found) else None

    def level(self, depth: int) -> list[int]:
        """Nodes at this depth."""
        return np.flatnonzero(self.depths == depth).tolist()

    def path(self, node: int) -> list[int]:
        """Nodes from the root to this one, both included."""
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(int(self._parents[nodes[-1]]))
        return nodes[::-1]

    def spell(self, node: int) -> list[int]:
        """Tokens on the path from the root to this node, both included."""
        tokens: list[int] = self.tokens[self.path(node)].tolist()
        return tokens

    def ancestors(self) -> BoolArray:
        """Square matrix, [n, n]: True where the column lies on the row's path, itself included."""
        mask = np.eye(len(self), dtype=bool)
        for node in range(1, len(self)):
            mask[node] |= mask[self._parents[node]]
        return mask

    def proposal(self, node: int, child: int) -> FloatArray:
        """Draft probs q from which a sampled child of this node was drawn."""
        return self.proposals[node, int(self._sources[child]).bit_length() - 1]

    # ------------------------------------------------------------------------------- pruning
    def keep(self, nodes: Iterable[int]) -> "Tree":
        """The subtree on these nodes and the root; each node's parent must be among them."""
        return self._cut(np.array(sorted({ROOT, *nodes}), np.int64))

    def _cut(self, order: IntArray) -> "Tree":
        """The subtree on these nodes, in ascending order."""
        new = np.full(len(self), -1)
        new[order] = np.arange(len(order))
        parents = new[self.parents[order]]
        parents[ROOT] = -1
        if (lost := np.flatnonzero(parents[1:] < 0)).size:
            node = int(order[lost[0] + 1])
            raise ValueError(f"node {node} cannot be kept without its parent {self._parents[node]}")
        cut = Tree.from_columns(
            self.tokens[order],
            parents,
            self.depths[order],
            self.probs[order],
            reach=self.reach[order],
            ranks=self.ranks[order],
            sources=self.sources[order],
            expanded=self.expanded[order],
            kept=order,
        )
        cut._sampled = self.sampled[order]
        cut.valued = int(order.searchsorted(self.valued))
        if self.proposals:
            kept = {node: place for place, node in enumerate(order.tolist())}
            cut.proposals = {
                (kept[node], source): full_probs
                for (node, source), full_probs in self.proposals.items()
                if node in kept
            }
        return cut

    def best(self, count: int) -> "Tree":
        """The `count` nodes of largest reach besides the root; reach never rises along a path."""
        order = np.zeros(1 + min(max(count, 0), len(self) - 1), np.int64)
        order[1:] = (-self.reach[1:]).argsort(kind="stable")[: len(order) - 1] + 1
        order.sort()
        return self._cut(order)


# attributes that `LazyTree.load` sets
LAZY = frozenset(Tree.from_columns(*(np.zeros(1, np.int64),) * 3, np.zeros(1)).__dict__)


class LazyTree(Tree):
    """A tree of known size, whose columns are set when one is first read."""

    def __init__(self, size: int) -> None:
        self._begin()
        del self.kept
        self._size = size

    def __getattr__(self, name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.load()
        return self.__dict__[name]

    def load(self) -> None:
        """Set all columns."""
        raise NotImplementedError


def check_path(path: Sequence[int], parents: IntArray) -> None:
    """Raise ValueError unless this is a path from the root of the tree with these parents."""
    if any(not 0 <= node < len(parents) for node in path):
        raise ValueError(
            f"cannot commit {list(path)}: {len(parents)} nodes were scored since the last commit"
        )
    if not len(path) or [-1, *path[:-1]] != [int(parents[node]) for node in path]:
        raise ValueError(f"cannot commit {list(path)}: it is not a path that starts at the root")
