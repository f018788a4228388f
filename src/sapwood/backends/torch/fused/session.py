"""A session in a pool, which believes a tree on the device until somebody needs its columns."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from sapwood.backends.torch.cache import Span
from sapwood.backends.torch.fused.facts import NOTHING, Moved
from sapwood.backends.torch.fused.pool import CHUNK, Seat
from sapwood.backends.torch.fused.tree import DeviceTree, Owed, Parcel
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.session import TorchSession
from sapwood.tree import Tree, check_path


class Walked(Owed):
    """A path that was walked on the device and is not in its place yet."""

    def __init__(self, work: Callable[[], None], parcel: Parcel, moved: Moved) -> None:
        super().__init__(work)
        self.parcel, self.moved = parcel, moved

    def fits(self, parcel: Parcel) -> bool:
        """True where the pass over a tree of this parcel can put it in place."""
        return self.parcel is parcel and self.moved.stop - self.moved.stay <= CHUNK


class FusedSession(TorchSession):
    """The committed text of one request, in a seat of the pool."""

    _tree: Any = None  # one that was scored on the device and not looked at since
    _owed: Walked | None = None  # a kept path that is not in its place yet
    queued: Any = None  # the pass over the next tree, where it is on its way already

    @property
    def closed(self) -> bool:
        """True when it has no place in the pool any more."""
        return self._slots is None

    @property
    def seat(self) -> Seat:
        """The session's place in the pool."""
        slots = self.slots
        assert isinstance(slots, Seat)
        return slots

    def begin(self, tree: Tree, since: int) -> tuple[Block, Span]:
        """Make room for the rows of a tree; nodes below `since` must still be in the tail."""
        self._tidy()
        self._settle()
        self._tree = None
        self.check(tree, since)
        return super().begin(tree, since)

    def start(self, tree: Tree) -> None:
        """Make room for a whole tree and take its columns as those in the tail."""
        self._reserve(tree)
        self._tree = None
        self.scored(tree, {})

    def prepare(self, tree: DeviceTree) -> Moved:
        """Make room for a whole tree; what its pass must put in place first."""
        if self._owed is not None and not self._owed.fits(tree.turn.parcel):
            self._tidy()
        self.seat.reserve(self._length + len(tree), self._length)
        return NOTHING if self._owed is None else self._owed.moved

    def believe(self, tree: DeviceTree) -> None:
        """Take the columns of a tree whose pass is on its way, when they are needed, as they come."""
        if self._owed is not None:
            self._owed.forgive()  # the pass does it
            self._owed = None
        self._tokens = self._parents = np.empty(0, np.int64)
        self._tree = tree

    def _reserve(self, tree: Tree) -> None:
        self._tidy()
        self.seat.reserve(self._length + len(tree), self._length)

    def _tidy(self) -> None:
        """Put the kept path in its place: only now, so that the next tree could begin to grow before."""
        if self._owed is not None:
            with torch.inference_mode():
                self._owed.pay()
            self._owed = None

    def _settle(self) -> None:
        if self._tree is not None:
            self._tokens, self._parents = self._tree.tokens.copy(), self._tree.parents.copy()

    def advance(self, rows: int) -> None:
        """Commit that many slots as they are and drop the tree in flight."""
        self._tree = None
        super().advance(rows)

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""
        seat, tree = self.seat, self._tree
        self._tidy()
        rows = tree.path_rows(tuple(path)) if tree is not None else None
        if rows is None:  # what the device has walked is a path
            self._settle()
            check_path(path, self._parents)
        stay = next((i for i, node in enumerate(path) if i != node), len(path))  # these lie in place already
        if self.queued is not None:
            if rows is None:
                raise RuntimeError("a pass was queued behind a path that the device walked; commit that path")
            stay = len(path)  # that pass puts it in place
        if rows is not None and stay < len(path):
            gather = partial(seat.gather, rows[stay:], self._length + stay, self._length)
            parcel, moved = tree.turn.parcel, Moved(self._length, stay, len(path))
            self._owed = parcel.owed = Walked(gather, parcel, moved)
        elif stay < len(path):
            with torch.inference_mode():
                seat.move([self._length + node for node in path[stay:]], self._length + stay)
        self.advance(len(path))

    def extend(self, rows: int) -> tuple[Block, Span]:
        """Make room for the next `rows` tokens of a prompt; `learn` commits them."""
        self._tidy()
        return super().extend(rows)

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`, and the tree in flight."""
        self._tidy()
        super().rewind(length)

    def close(self) -> None:
        """Free the memory; the session cannot be used again."""
        if self._owed is not None:
            self._owed.forgive()
        super().close()

    def fork(self) -> Self:
        """An independent session with the same committed text."""
        self._tidy()
        return super().fork()
