"""The committed text of one request: slots, a length, and the tree in flight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Slots, Span
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.scores import TorchScores
from sapwood.protocols import Scores
from sapwood.tree import Tree, check_path


@dataclass(frozen=True, slots=True)
class Entered:
    """A tree whose first layers were run: what the next ones read, and what was watched on the way."""

    tree: Tree
    layer: int  # the first that was not run
    states: torch.Tensor  # [nodes, width], its input
    kept: Mapping[int, torch.Tensor]  # layer -> [nodes, width]

    def rows_of(self, tree: Tree) -> IntArray | None:
        """Where the nodes of a tree lie among ours, [nodes]; None where it was not cut from the same tree as ours."""
        if tree is self.tree:
            return np.arange(len(tree))
        if tree.kept is None or self.tree.kept is None or len(tree) > len(self.tree):
            return None
        rows = np.minimum(np.searchsorted(self.tree.kept, tree.kept), len(self.tree) - 1)
        same = np.array_equal(self.tree.kept[rows], tree.kept) and np.array_equal(self.tree.tokens[rows], tree.tokens)
        return rows if same and np.array_equal(self.tree.parents[rows[1:]], rows[tree.parents[1:]]) else None


@dataclass(frozen=True, slots=True)
class Reading:
    """What the model made of a prompt, from which its logits can still be had."""

    head: Callable[[torch.Tensor], torch.Tensor]
    states: torch.Tensor  # [rows, width], what the head reads
    hidden: Mapping[int, torch.Tensor]  # layer -> [rows, width], of the layers the backend watches

    def scores(self, last: int) -> TorchScores:
        """Logits and hidden states of the last rows."""
        hidden = {layer: states[-last:] for layer, states in self.hidden.items()}
        return TorchScores(lambda: self.head(self.states[-last:]), hidden)


class TorchSession:
    """Keys and values of one request, with the nodes that were scored since the last commit."""

    def __init__(self, slots: Slots, length: int = 0) -> None:
        self._slots: Slots | None = slots
        self.entered: Entered | None = None  # a tree that was run through the first layers only
        self.read: Reading | None = None  # what the model made of the first text, until something is committed
        self._length = length
        self._tokens: IntArray = np.empty(0, np.int64)  # of the nodes scored in this round
        self._parents: IntArray = np.empty(0, np.int64)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def slots(self) -> Slots:
        """The session's memory."""
        self._check_open()
        assert self._slots is not None
        return self._slots

    def _check_open(self) -> None:
        if self._slots is None:
            raise ValueError("this session is closed; open a new one")

    @torch.inference_mode()
    def reading(self, last: int) -> Scores | None:
        """Scores of the last tokens the session was opened with; None after the first commit."""
        return self.read.scores(last) if self.read is not None and last > 0 else None

    def begin(self, tree: Tree, since: int) -> tuple[Block, Span]:
        """Make room for the rows of a tree; nodes below `since` must still be in the tail."""
        slots, nodes = self.slots, len(tree)
        if not 0 <= since < nodes:
            raise ValueError(f"since={since} leaves nothing to score in a tree of {nodes} nodes")
        if since > len(self._tokens):
            raise ValueError(f"since={since}, but only {len(self._tokens)} nodes were scored in this round")
        same = np.array_equal(self._tokens[:since], tree.tokens[:since])
        if not same or not np.array_equal(self._parents[:since], tree.parents[:since]):
            raise ValueError(f"the first {since} nodes are not those scored earlier in this round; use since=0")
        slots.reserve(self._length + nodes, self._length + since)
        self._tokens, self._parents = self._tokens[:since], self._parents[:since]  # the rest is about to be overwritten
        slots.writer, self.entered = self, None
        block = Block(self._length, tree.parents, tree.depths, since)
        return block, Span(slots, self._length + since, nodes - since)

    def scored(self, tree: Tree) -> None:
        """Remember which nodes the tail holds."""
        self._tokens, self._parents = tree.tokens.copy(), tree.parents.copy()

    def extend(self, rows: int) -> Span:
        """Where the next `rows` tokens of a prompt go; `advance` commits them."""
        self.slots.reserve(self._length + rows, self._length)
        return Span(self.slots, self._length, rows)

    def advance(self, rows: int) -> None:
        """Commit that many slots as they are and drop the tree in flight."""
        self._length += rows
        self.entered = None
        self._tokens = self._parents = np.empty(0, np.int64)
        self.read = None

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        slots = self.slots
        check_path(path, self._parents)
        stay = next((i for i, node in enumerate(path) if i != node), len(path))  # these lie in place already
        if stay < len(path):
            slots.move([self._length + node for node in path[stay:]], self._length + stay)
        self.advance(len(path))

    def _tidy(self) -> None:
        """Put the kept path in its place, where that was put off; here it never is."""

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`, and the tree in flight."""
        self._check_open()
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind a session of {self._length} tokens to {length}")
        self.advance(length - self._length)

    def fork(self) -> "TorchSession":
        """An independent session with the same committed text."""
        return TorchSession(self.slots.copy(self._length), self._length)

    def close(self) -> None:
        """Free the memory; the session cannot be used again."""
        self._slots = None
