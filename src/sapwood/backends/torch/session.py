"""The committed text of one request: slots, a length, and the tree in flight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from sapwood.backends.torch.kv_slots import KvSlots, RowSpan
from sapwood.backends.torch.network import Kept, MaskBlock
from sapwood.backends.torch.output import TorchOutput
from sapwood.core.array_types import IntArray
from sapwood.core.protocols import TargetOutput
from sapwood.core.tree import Tree, check_path

NOTHING: IntArray = np.empty(0, np.int64)
Head = Callable[[torch.Tensor], torch.Tensor]  # from final hidden states to logits


@dataclass(frozen=True, slots=True)
class PartialTree:
    """A tree whose first layers were run, with the input of the next layer."""

    tree: Tree  # its first nodes, as many as `states` has rows
    layer: int  # the first layer that was not run
    states: torch.Tensor  # [nodes, width], its input
    kept: Mapping[int, torch.Tensor]  # layer -> [nodes, width]

    def rows_of(self, tree: Tree) -> IntArray | None:
        """Rows of a tree's nodes among ours, [nodes], -1 if not run; None without its root."""
        count = len(self.states)
        tokens, parents = self.tree.tokens[:count].tolist(), self.tree.parents[:count].tolist()
        rows = {key: row for row, key in enumerate(zip(parents, tokens, strict=True))}
        found: list[int] = []
        for parent, token in zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True):
            above = -1 if parent < 0 else found[parent]
            found.append(rows.get((above, token), -1) if parent < 0 or above >= 0 else -1)
        return np.array(found) if found[0] == 0 else None

    def grown(self, tree: Tree, rows: IntArray) -> tuple[Tree, IntArray]:
        """Our tree with the nodes of `tree` that it lacks, and the rows of all nodes of `tree`."""
        whole = self.tree.keep(range(len(self.states)))
        found = rows.tolist()
        for node, row in enumerate(found):
            if row < 0:
                parent = found[int(tree.parents[node])]
                found[node] = whole.add(parent, int(tree.tokens[node]), 1.0, sampled=True)
        return whole, np.array(found)

    def extended(self, tree: Tree, states: torch.Tensor, kept: Kept) -> "PartialTree":
        """The same tree with more nodes, whose states are given."""
        joined = {layer: torch.cat((self.kept[layer], more)) for layer, more in kept.items()}
        return PartialTree(tree, self.layer, torch.cat((self.states, states)), joined)

    def begins(self, tree: Tree, nodes: int, layer: int) -> bool:
        """True when the first `nodes` nodes of a tree are ours, run up to this layer."""
        mine = self.tree
        return (
            layer == self.layer
            and nodes == len(self.states)
            and np.array_equal(mine.tokens[:nodes], tree.tokens[:nodes])
            and np.array_equal(mine.parents[:nodes], tree.parents[:nodes])
        )


class PromptStates:
    """Hidden states of a prompt by chunk, from which its logits can be computed."""

    def __init__(self, head: Head, pieces: Sequence[Kept] = ()) -> None:
        # layer -> [rows, width]; the highest layer is the output head's input
        self.head = head
        self.pieces = [*pieces]

    def scores(self, last: int) -> TorchOutput | None:
        """Output of the last rows, as far as their states are kept."""
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
        hidden = (
            pieces[0]
            if len(pieces) == 1
            else {n: torch.cat([piece[n] for piece in pieces]) for n in layers}
        )
        return TorchOutput(lambda: self.head(hidden[max(layers)]), hidden)


class TorchSession:
    """Keys and values of one request, with the nodes that were scored since the last commit."""

    def __init__(self, slots: KvSlots, length: int = 0) -> None:
        self._slots: KvSlots | None = slots
        self.entered: PartialTree | None = None  # a tree that `enter` has begun
        # states of the prompt, until a path is committed
        self.read: PromptStates | None = None
        self._length = length
        self._drop()

    def _drop(self) -> None:
        """Drop the tree in flight."""
        self.entered = None
        self._tokens: IntArray = NOTHING  # of the nodes scored in this round
        self._parents: IntArray = NOTHING
        self._states: Kept = {}  # of the same nodes, with a prefix cache

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def _memory(self) -> KvSlots:
        """The session's slots, to which a pass may still be writing."""
        self._check_open()
        assert self._slots is not None
        return self._slots

    @property
    def slots(self) -> KvSlots:
        """The session's slots, after waiting for a running pass."""
        memory = self._memory
        memory.settle()
        return memory

    def _check_open(self) -> None:
        if self._slots is None:
            raise ValueError("this session is closed; open a new one")

    @torch.inference_mode()
    def prefill_output(self, last: int) -> TargetOutput | None:
        """Output of the last prompt tokens, as far as kept; None after the first commit."""
        return None if self.read is None else self.read.scores(last)

    # ------------------------------------------------------------------------------------- a tree
    def check(self, tree: Tree, since: int) -> None:
        """Refuse an invalid tree; nodes below `since` must have been scored in this round."""
        nodes = len(tree)
        self._check_open()
        if not 0 <= since < nodes:
            raise ValueError(f"since={since} leaves nothing to score in a tree of {nodes} nodes")
        if since > len(self._tokens):
            raise ValueError(
                f"since={since}, but only {len(self._tokens)} nodes were scored in this round"
            )
        same = not since or np.array_equal(self._tokens[:since], tree.tokens[:since])
        if not same or (since and not np.array_equal(self._parents[:since], tree.parents[:since])):
            raise ValueError(
                f"the first {since} nodes are not those scored earlier in this round; use since=0"
            )

    def place(self, rows: int, since: int = 0) -> tuple[KvSlots, int, int]:
        """Slots, start and stop of the positions that a tree or a prompt chunk is written to."""
        return self.slots, self._length + since, self._length + rows

    def begin(self, tree: Tree, since: int) -> tuple[MaskBlock, RowSpan]:
        """Reserve the rows of a checked tree."""
        slots = self.slots
        nodes = len(tree)
        slots.reserve(self._length + nodes, self._length + since)
        # the rest is about to be overwritten
        self._tokens = self._tokens[:since]
        self._parents = self._parents[:since]
        self._states = {layer: states[:since] for layer, states in self._states.items()}
        slots.writer = self
        self.entered = None
        block = MaskBlock(self._length, tree.parents, tree.depths, since)
        return block, RowSpan(slots, self._length + since, nodes - since)

    def scored(self, tree: Tree, states: Kept) -> None:
        """Record the scored nodes and their states, layer -> [rows, width]."""
        self._tokens = tree.tokens.copy()
        self._parents = tree.parents.copy()
        if self._memory.keeps:
            before = self._states
            if before:
                self._memory.settle()
            self._states = {
                n: torch.cat((before[n], new)) if n in before else new for n, new in states.items()
            }

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        slots = self.slots
        nodes = list(path)
        check_path(path, self._parents)
        # the first nodes may be in place already
        stay = next((i for i, node in enumerate(path) if i != node), len(path))
        if stay < len(path):
            slots.move([self._length + node for node in path[stay:]], self._length + stay)
        if slots.queries is not None:  # those of the accepted path, for a draft that chooses keys
            slots.queries = slots.queries.at([self._length + node for node in nodes])
        tokens = self._tokens[nodes].tolist()
        states = {layer: rows[nodes] for layer, rows in self._states.items()}
        self.advance(len(path))
        slots.commit(tokens, self._length, states)

    # ------------------------------------------------------------------------------------ the text
    def extend(self, rows: int) -> tuple[MaskBlock, RowSpan]:
        """Reserve the next `rows` tokens of a prompt; `learn` commits them."""
        self._drop()
        self.slots.reserve(self._length + rows, self._length)
        nodes = np.arange(rows)
        return MaskBlock(self._length, nodes - 1, nodes), RowSpan(self.slots, self._length, rows)

    def learn(self, tokens: Sequence[int], states: Kept, head: Head) -> None:
        """Commit a prompt chunk that was run, and keep its hidden states by layer."""
        read = PromptStates(head, () if self.read is None else self.read.pieces)
        self.advance(len(tokens))
        self.slots.commit(tokens, self._length, states)
        read.pieces.append(states)
        self.read = read

    def advance(self, rows: int) -> None:
        """Commit that many positions as they are and drop the tree in flight."""
        self._length += rows
        self._drop()
        self.read = None

    def _run_deferred(self) -> None:
        """Run a deferred move of the accepted path; here there is none."""

    def rewind(self, length: int) -> None:
        """Drop every committed token after the first `length`, and the tree in flight."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind a session of {self._length} tokens to {length}")
        self.slots.cut(length)
        self.advance(length - self._length)

    def fork(self) -> Self:
        """An independent session with the same committed text and prompt states."""
        other = type(self)(self.slots.copy(self._length), self._length)
        other.read = self.read
        other.slots.queries = self.slots.queries
        return other

    def close(self) -> None:
        """Free the memory; the session cannot be used again."""
        if self._slots is not None:
            self.slots.release()
        self._slots = None
