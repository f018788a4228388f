"""The committed text of one request: one sequence, and one more for each further branch."""

import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from sapwood.backends.llamacpp.kv_context import DecodeRows, KvContext
from sapwood.backends.llamacpp.output import LlamaCppOutput
from sapwood.backends.llamacpp.sequence_ids import COMMITTED, branches, by_branch
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import TargetOutput
from sapwood.core.tree import Tree, check_path

UNNAMED = -1  # no sequence: the name of a session before it is made
# sequences that a session keeps for its next tree: sharing the text with new ones takes time
KEPT = 64


class LlamaCppSession:
    """Cells of one request, with the nodes that were scored since the last commit."""

    def __init__(self, memory: KvContext, meant: int = 0) -> None:
        self.memory = memory
        self.meant = meant  # tokens of the text it was opened for
        # output of the last prompt tokens, until a path is committed
        self.read: LlamaCppOutput | None = None
        self._length = 0
        self._trunk = memory.take()  # holds the committed text, and the first branch of a tree
        self._held: dict[int, int] = {}  # further sequences -> committed tokens that each holds
        self._owned = [self._trunk]
        memory.sessions[self._trunk] = 0
        self._release = weakref.finalize(self, memory.release, self._owned)
        self._release.atexit = False  # the context is freed then, with all its cells
        self._forget()

    def _forget(self) -> None:
        """Reset to no tree in flight."""
        self._tokens: IntArray = np.empty(0, np.int64)  # of the nodes scored in this round
        self._parents: IntArray = np.empty(0, np.int64)
        self._depths: IntArray = np.empty(0, np.int64)
        self._carrier: list[int] = []  # for each of these nodes, a sequence that holds it
        self._order: list[int] = []  # the same nodes in the order of their cells
        self._tips = {COMMITTED: self._trunk}  # node -> the sequence that ends there
        self._idle = list(self._held)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def name(self) -> int:
        """The session's first sequence, its key in `KvContext.sessions`."""
        return self._trunk

    def check_open(self) -> None:
        """Refuse a closed session."""
        if not self._release.alive:
            raise ValueError("this session is closed; open a new one")

    def prefill_output(self, last: int) -> TargetOutput | None:
        """Output of the last prompt tokens, as far as it was kept; None after a commit."""
        return self.read.tail(last) if self.read is not None and last > 0 else None

    # ---------------------------------------------------------------------------------- a tree
    def check(self, tree: Tree, since: int) -> None:
        """Refuse what cannot be scored; nodes below `since` must still be in memory."""
        self.check_open()
        nodes = len(tree)
        if not 0 <= since < nodes:
            raise ValueError(f"since={since} leaves nothing to score in a tree of {nodes} nodes")
        if since > len(self._tokens):
            raise ValueError(
                f"since={since}, but only {len(self._tokens)} nodes were scored in this round"
            )
        same = np.array_equal(self._tokens[:since], tree.tokens[:since])
        if not same or not np.array_equal(self._parents[:since], tree.parents[:since]):
            raise ValueError(
                f"the first {since} nodes are not those scored earlier in this round; use since=0"
            )

    def begin(self, tree: Tree, since: int) -> DecodeRows:
        """The rows of a tree's nodes from `since` on, branch by branch, after `check`."""
        if since < len(self._tokens):
            self._drop_nodes(since)
        parents: list[int] = tree.parents.tolist()
        found, through = branches(parents, since)
        lanes = [self._branch(branch.stem) for branch in found]
        for branch, lane in zip(found, lanes, strict=True):
            self._tips[branch.leaf] = lane
        members = [[lanes[place] for place in places] for places in through]
        self._carrier += [first for first, *_ in members]
        self._tokens = tree.tokens.copy()
        self._parents = tree.parents.copy()
        self._depths = tree.depths.copy()
        order = by_branch(parents, since)
        self._order += order
        self.memory.sessions[self._trunk] = self._length + len(tree)
        positions = self._length + self._depths[order]
        return DecodeRows(self._tokens[order], positions, [members[node - since] for node in order])

    def ranks(self, since: int) -> list[int]:
        """Row of each node from `since` on in the pass that `begin` prepared last."""
        order = self._order[since:]
        ranks = [0] * len(order)
        for row, node in enumerate(order):
            ranks[node - since] = row
        return ranks

    def _branch(self, stem: int) -> int:
        """A sequence that holds the text up to this node and ends there."""
        if stem in self._tips:
            return self._tips.pop(stem)
        lane = self._spare()
        if stem != COMMITTED:
            self.memory.share(
                self._carrier[stem], lane, self._length, self._length + int(self._depths[stem]) + 1
            )
        return lane

    def _spare(self) -> int:
        """A sequence that holds the committed text and nothing else."""
        if not self._idle:
            self._owned.append(self.memory.take())
            self._held[self._owned[-1]] = 0
            self._idle.append(self._owned[-1])
        lane = self._idle.pop()
        if self._held[lane] < self._length:
            self.memory.share(self._trunk, lane, self._held[lane], self._length)
            self._held[lane] = self._length
        return lane

    def _drop_nodes(self, since: int) -> None:
        """Drop the scored nodes from `since` on."""
        if not since:
            self.drop()
            return
        self._retire(max(self._order.index(node) for node in range(since)), range(since))
        self._order = [node for node in self._order if node < since]
        tips = self._tips
        self._tips = {}
        self._carrier = [self._trunk] * since
        for node, lane in tips.items():
            while node >= since:
                node = int(self._parents[node])
            if node in self._tips:
                self.memory.truncate(lane, self._length)
                self._idle.append(lane)
                continue
            self.memory.truncate(lane, self._length + int(self._depths[node]) + 1)
            self._tips[node] = lane
            while node >= 0:
                self._carrier[node], node = lane, int(self._parents[node])
        self._tokens, self._parents, self._depths = (
            column[:since] for column in (self._tokens, self._parents, self._depths)
        )

    def drop(self) -> None:
        """Drop the tree in flight."""
        for lane in self._owned:
            self.memory.truncate(lane, self._length)
        self._forget()

    # ----------------------------------------------------------------------------------- text
    def extend(self, tokens: IntArray) -> DecodeRows:
        """The rows of a piece of prompt; `learn` commits them."""
        if len(self._tokens):
            self.drop()
        self.memory.sessions[self._trunk] = self._length + len(tokens)
        positions = self._length + np.arange(len(tokens))
        return DecodeRows(tokens, positions, [[self._trunk]] * len(tokens))

    def learn(self, logits: FloatArray, count: int) -> None:
        """Commit a piece of prompt that was run, and keep the logits of its last rows."""
        known = self.read if len(logits) == count else None  # rows in between were not kept
        self.advance(count)
        if len(logits):
            self.read = LlamaCppOutput(logits) if known is None else known.then(logits)

    def advance(self, count: int) -> None:
        """Count this many more tokens as committed."""
        self._length += count
        self.memory.sessions[self._trunk] = self._length
        self.read = None
        self._forget()

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        self.check_open()
        check_path(path, self._parents)
        start = self._length
        end = self._length + len(path)
        keeper = self._carrier[path[-1]]
        self._retire(self._order.index(path[-1]), path)
        if keeper != self._trunk:
            self.memory.truncate(self._trunk, start)
            self.memory.share(keeper, self._trunk, start, end)
            self._held[keeper] = end
        for lane in self._tips.values():
            self.memory.truncate(lane, end if lane in (keeper, self._trunk) else start)
        self.advance(len(path))
        while len(self._held) > KEPT:
            self._free_sequence(self._held.popitem()[0])

    def _retire(self, last: int, kept: Iterable[int]) -> None:
        """Retire the cells before `last`: a later token there would precede earlier ones."""
        for node in set(self._order[:last]).difference(kept):
            self.memory.retire(self._carrier[node], self._length + int(self._depths[node]))

    def _free_sequence(self, lane: int) -> None:
        self._owned.remove(lane)
        self._idle.remove(lane)
        self.memory.give(lane)

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`, and the tree in flight."""
        self.check_open()
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind a session of {self._length} tokens to {length}")
        self.advance(length - self._length)
        self._held = {lane: min(held, length) for lane, held in self._held.items()}
        self.drop()

    def fork(self) -> "LlamaCppSession":
        """An independent session with the same committed text, in the same cells."""
        self.check_open()
        self.memory.check({UNNAMED: self._length})
        other = LlamaCppSession(self.memory, self.meant)
        self.memory.share(self._trunk, other._trunk, 0, self._length)
        other._length = self.memory.sessions[other._trunk] = self._length
        other.read = self.read
        return other

    def close(self) -> None:
        """Free the sequences; the session cannot be used again."""
        self._release()
