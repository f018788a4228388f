"""The committed text of one request: slots, a length, and the tree in flight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Slots, Span
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.network import Kept
from sapwood.backends.torch.scores import TorchScores
from sapwood.protocols import Scores
from sapwood.tree import Tree, check_path

Head = Callable[[torch.Tensor], torch.Tensor]  # from what the output head reads to logits


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


class Reading:
    """What the model made of a prompt, piece by piece, from which its logits can still be had."""

    def __init__(self, head: Head, pieces: Sequence[Kept] = ()) -> None:
        self.head, self.pieces = head, [*pieces]  # layer -> [rows, width]; the last layer's is what the head reads

    def scores(self, last: int) -> TorchScores | None:
        """Logits and hidden states of the last rows, as far as they are known."""
        pieces: list[Kept] = []
        missing = last
        for piece in reversed(self.pieces):
            if missing <= 0:
                break
            pieces.insert(0, {layer: states[-missing:] for layer, states in piece.items()})
            missing -= len(next(iter(piece.values())))
        if not pieces:
            return None
        layers = set(pieces[0]).intersection(*pieces)
        hidden = pieces[0] if len(pieces) == 1 else {n: torch.cat([piece[n] for piece in pieces]) for n in layers}
        return TorchScores(lambda: self.head(hidden[max(layers)]), hidden)


class TorchSession:
    """Keys and values of one request, with the nodes that were scored since the last commit."""

    def __init__(self, slots: Slots, length: int = 0) -> None:
        self._slots: Slots | None = slots
        self.entered: Entered | None = None  # a tree that was run through the first layers only
        self.read: Reading | None = None  # what the model made of the first text, until a path is committed
        self._length = length
        self._drop()

    def _drop(self) -> None:
        """No tree is in flight."""
        self.entered = None
        self._tokens: IntArray = np.empty(0, np.int64)  # of the nodes scored in this round
        self._parents: IntArray = np.empty(0, np.int64)
        self._states: Kept = {}  # of the same nodes, where the slots keep them

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def _memory(self) -> Slots:
        """The session's memory, to which a pass may still be writing."""
        self._check_open()
        assert self._slots is not None
        return self._slots

    @property
    def slots(self) -> Slots:
        """The session's memory, to which no pass is writing."""
        memory = self._memory
        memory.settle()
        return memory

    def _check_open(self) -> None:
        if self._slots is None:
            raise ValueError("this session is closed; open a new one")

    @torch.inference_mode()
    def reading(self, last: int) -> Scores | None:
        """Scores of the last tokens that were read, as far as they are known; None after the first commit."""
        return None if self.read is None else self.read.scores(last)

    # ------------------------------------------------------------------------------------- a tree
    def check(self, tree: Tree, since: int) -> None:
        """Refuse what cannot be scored; nodes below `since` must still be in the tail."""
        nodes = len(tree)
        self._check_open()
        if not 0 <= since < nodes:
            raise ValueError(f"since={since} leaves nothing to score in a tree of {nodes} nodes")
        if since > len(self._tokens):
            raise ValueError(f"since={since}, but only {len(self._tokens)} nodes were scored in this round")
        same = not since or np.array_equal(self._tokens[:since], tree.tokens[:since])
        if not same or (since and not np.array_equal(self._parents[:since], tree.parents[:since])):
            raise ValueError(f"the first {since} nodes are not those scored earlier in this round; use since=0")

    def place(self, rows: int, since: int = 0) -> tuple[Slots, int, int]:
        """Where a tree of so many rows, or a piece of prompt, is written: the places from start to stop."""
        return self.slots, self._length + since, self._length + rows

    def begin(self, tree: Tree, since: int) -> tuple[Block, Span]:
        """Make room for the rows of a tree that was checked."""
        slots, nodes = self.slots, len(tree)
        slots.reserve(self._length + nodes, self._length + since)
        self._tokens, self._parents = self._tokens[:since], self._parents[:since]  # the rest is about to be overwritten
        self._states = {layer: states[:since] for layer, states in self._states.items()}
        slots.writer, self.entered = self, None
        block = Block(self._length, tree.parents, tree.depths, since)
        return block, Span(slots, self._length + since, nodes - since)

    def scored(self, tree: Tree, states: Kept) -> None:
        """Remember which nodes the tail holds, and the states of those that were run, [rows, width] by layer."""
        self._tokens, self._parents = tree.tokens.copy(), tree.parents.copy()
        if self._memory.keeps:
            before = self._states
            if before:
                self._memory.settle()
            self._states = {n: torch.cat((before[n], new)) if n in before else new for n, new in states.items()}

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        slots, nodes = self.slots, list(path)
        check_path(path, self._parents)
        stay = next((i for i, node in enumerate(path) if i != node), len(path))  # these lie in place already
        if stay < len(path):
            slots.move([self._length + node for node in path[stay:]], self._length + stay)
        tokens, states = self._tokens[nodes].tolist(), {layer: rows[nodes] for layer, rows in self._states.items()}
        self.advance(len(path))
        slots.commit(tokens, self._length, states)

    # ------------------------------------------------------------------------------------ the text
    def extend(self, rows: int) -> tuple[Block, Span]:
        """Make room for the next `rows` tokens of a prompt; `learn` commits them."""
        self._drop()
        self.slots.reserve(self._length + rows, self._length)
        nodes = np.arange(rows)
        return Block(self._length, nodes - 1, nodes), Span(self.slots, self._length, rows)

    def learn(self, tokens: Sequence[int], states: Kept, head: Head) -> None:
        """Commit a piece of prompt that was run, and keep what the model made of it, layer by layer."""
        read = Reading(head, () if self.read is None else self.read.pieces)
        self.advance(len(tokens))
        self.slots.commit(tokens, self._length, states)
        read.pieces.append(states)
        self.read = read

    def advance(self, rows: int) -> None:
        """Commit that many places as they are and drop the tree in flight."""
        self._length += rows
        self._drop()
        self.read = None

    def _tidy(self) -> None:
        """Put the kept path in its place, where that was put off; here it never is."""

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`, and the tree in flight."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind a session of {self._length} tokens to {length}")
        self.slots.cut(length)
        self.advance(length - self._length)

    def fork(self) -> Self:
        """An independent session with the same committed text, which knows as much of it."""
        other = type(self)(self.slots.copy(self._length), self._length)
        other.read = self.read
        return other

    def close(self) -> None:
        """Free the memory; the session cannot be used again."""
        if self._slots is not None:
            self.slots.release()
        self._slots = None
