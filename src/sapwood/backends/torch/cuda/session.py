"""A session in the KV pool; a scored tree stays on the device until the host needs its columns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from sapwood.backends.torch.cuda.draft.device_tree import DeferredMove, DeviceTree, RoundBuffer
from sapwood.backends.torch.cuda.kv_pool import CHUNK, KvSequence
from sapwood.backends.torch.cuda.pass_inputs import NOTHING, PendingMove
from sapwood.backends.torch.kv_slots import RowSpan
from sapwood.backends.torch.network import MaskBlock
from sapwood.backends.torch.session import TorchSession
from sapwood.core.tree import Tree, check_path


class UnmovedPath(DeferredMove):
    """The deferred move of an accepted path to the slots behind the committed text."""

    def __init__(
        self, work: Callable[[], None], round_buffer: RoundBuffer, moved: PendingMove
    ) -> None:
        super().__init__(work)
        self.round_buffer = round_buffer
        self.moved = moved

    def fits(self, round_buffer: RoundBuffer) -> bool:
        """True when the pass over a tree of this round buffer can run the move itself."""
        return self.round_buffer is round_buffer and self.moved.stop - self.moved.stay <= CHUNK


class CudaSession(TorchSession):
    """The committed text of one request, in a KV sequence of the pool."""

    _tree: Any = None  # the last scored tree, while its columns are only on the device
    _deferred: UnmovedPath | None = None  # the move of the last accepted path, until it runs
    prelaunched_pass: Any = None  # the pass over the next tree, if it was launched already

    def __init__(self, sequence: KvSequence, length: int = 0) -> None:
        super().__init__(sequence, length)
        self._sequence = sequence

    @property
    def closed(self) -> bool:
        """True when its KV sequence was released."""
        return self._slots is None

    @property
    def sequence(self) -> KvSequence:
        """The session's KV sequence."""
        self._check_open()
        return self._sequence

    def begin(self, tree: Tree, since: int) -> tuple[MaskBlock, RowSpan]:
        """Make room for the rows of a tree; nodes below `since` must still be in the tail."""
        self._run_deferred()
        self._load_tree()
        self._tree = None
        self.check(tree, since)
        return super().begin(tree, since)

    def start(self, tree: Tree) -> None:
        """Make room for a whole tree and take its columns from the host."""
        self._reserve(tree)
        self._tree = None
        self.scored(tree, {})

    def start_root(self, tree: Tree) -> None:
        """Take the root of a tree whose slot is reserved."""
        self._run_deferred()
        self._tree = None
        self.prelaunched_pass = None
        self._tokens = tree.tokens
        self._parents = tree.parents

    def place_root(self) -> int:
        """Position of the root of a pass that is about to be launched; `advance` commits it."""
        self._run_deferred()
        self._tree = None
        self.prelaunched_pass = None
        return self._length

    def prepare(self, tree: DeviceTree) -> PendingMove:
        """Make room for a whole tree; returns the move that its pass must run first."""
        if self._deferred is not None and not self._deferred.fits(tree.round_use.round_buffer):
            self._run_deferred()
        self.sequence.reserve(self._length + len(tree), self._length)
        return NOTHING if self._deferred is None else self._deferred.moved

    def track_device_tree(self, tree: DeviceTree) -> None:
        """Note a tree whose pass was launched; its columns are copied when they are needed."""
        if self._deferred is not None:
            self._deferred.cancel()  # the pass runs the move
            self._deferred = None
        self._tokens = self._parents = np.empty(0, np.int64)
        self._tree = tree

    def _reserve(self, tree: Tree) -> None:
        self._run_deferred()
        self.sequence.reserve(self._length + len(tree), self._length)

    def _run_deferred(self) -> None:
        """Run the deferred move, which waits so that the next draft can start before it."""
        if self._deferred is not None:
            with torch.inference_mode():
                self._deferred.run()
            self._deferred = None

    def _load_tree(self) -> None:
        if self._tree is not None:
            self._tokens, self._parents = self._tree.tokens.copy(), self._tree.parents.copy()

    def advance(self, rows: int) -> None:
        """Commit that many slots as they are and drop the tree in flight."""
        self._tree = None
        super().advance(rows)

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        sequence, tree = self.sequence, self._tree
        self._run_deferred()
        if tree is None and len(path) == 1 and path[0] == 0 < len(self._parents):
            self.advance(1)  # the root lies in its slot
            return
        rows = tree.path_rows(tuple(path)) if tree is not None else None
        if rows is None:  # a path that the device accepted needs no check
            self._load_tree()
            check_path(path, self._parents)
        # the first nodes that lie in their final slots already
        stay = next((i for i, node in enumerate(path) if i != node), len(path))
        if self.prelaunched_pass is not None:
            if rows is None:
                raise RuntimeError(
                    "a pass was prelaunched behind the path that the device accepted; "
                    "commit that path"
                )
            stay = len(path)  # that pass runs the move
        if rows is not None and stay < len(path):
            gather = partial(sequence.gather, rows[stay:], self._length + stay, self._length)
            round_buffer = tree.round_use.round_buffer
            moved = PendingMove(self._length, stay, len(path))
            self._deferred = round_buffer.deferred = UnmovedPath(gather, round_buffer, moved)
        elif stay < len(path):
            with torch.inference_mode():
                sequence.move([self._length + node for node in path[stay:]], self._length + stay)
        self.advance(len(path))

    def extend(self, rows: int) -> tuple[MaskBlock, RowSpan]:
        """Make room for the next `rows` tokens of a prompt; `learn` commits them."""
        self._run_deferred()
        return super().extend(rows)

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`, and the tree in flight."""
        self._run_deferred()
        super().rewind(length)

    def close(self) -> None:
        """Free the memory; the session cannot be used again."""
        if self._deferred is not None:
            self._deferred.cancel()
        super().close()

    def fork(self) -> Self:
        """An independent session with the same committed text."""
        self._run_deferred()
        return super().fork()
