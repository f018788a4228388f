"""Memory in blocks of a few tokens: who holds which, and what is still known of texts that are gone.

A text takes whole blocks, wherever they lie; texts that begin alike may share them, and a shared block
is copied before it is written. What lies side by side is read faster, so blocks come in bays: a text
begins a bay of its own while there is one, and fills the gaps of others when there is none. Where memory
is limited, full blocks are known by a name; those of closed texts stay until their room is needed, and
whoever begins with the same text takes them up. Numbers alone: what is in a block is kept elsewhere.
"""

from collections.abc import Callable, Iterable

import numpy as np

from sapwood.arrays import BoolArray
from sapwood.errors import OutOfMemory, SapwoodError

BLOCK = 16  # tokens
BAY = 16  # blocks side by side: stretches of so many tokens are read almost as fast as one piece


class Blocks:
    """All blocks: how often each is held, which are free, which are known."""

    def __init__(self, block: int = BLOCK, follow: Callable[[int], None] = lambda _: None) -> None:
        self.block = block
        self._follow = follow  # told how many blocks there are to be, before there are more and after there are fewer
        self.blocks: int | None = None
        self.used = 0
        self.era = 0  # how often all was forgotten
        self._counts: list[int] = []  # of each block, by how many texts it is held
        self._free = np.ones(0, bool)
        self._spare = 0  # free blocks
        self._held: list[int] = []  # of each bay, how many blocks are held
        self._taken: list[int] = []  # of each bay, how many are not free
        self._names: dict[int, bytes] = {}  # of known blocks
        self._known: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # known blocks that nobody holds, the longest unused first

    # -------------------------------------------------------------------------------------- how much
    @property
    def capacity(self) -> int:
        """Blocks that have been made so far."""
        return len(self._counts)

    @property
    def cached(self) -> int:
        """Known blocks that nobody holds."""
        return len(self._idle)

    @property
    def keeps(self) -> bool:
        """True when blocks of closed texts are kept."""
        return self.blocks is not None

    def limit(self, tokens: int) -> None:
        """Set how many tokens there is room for; what is held already stays."""
        if tokens < self.block:
            raise SapwoodError(f"memory for {tokens} tokens holds no block; give at least {self.block}")
        self._grow(tokens // self.block)
        self.blocks = tokens // self.block
        self._make(0)

    def fits(self, tokens: int) -> bool:
        """True when one more text of so many tokens has room."""
        return self.blocks is None or self.used + -(-tokens // self.block) <= self.blocks

    def check(self, count: int) -> None:
        """Refuse to give out more blocks than there may be."""
        if self.blocks is not None and self.used + count > self.blocks:
            raise OutOfMemory(
                f"{count} more blocks of {self.block} tokens do not fit: {self.used} of {self.blocks} are in use; "
                "wait until a text is closed, or give memory more tokens"
            )

    # ------------------------------------------------------------------------------- taken and given
    def take(self, count: int, after: int = -1, ahead: int = 0) -> list[int]:
        """So many blocks, held once: those that follow `after`, or else some that `ahead` more may follow."""
        self.check(count)
        self._make(count)
        found: list[int] = []
        for left in range(count + ahead, ahead, -1):
            after = self._next(after, left)
            self._free[after] = False
            self._spare -= 1
            self._taken[after // BAY] += 1
            self._count(after)
            found.append(after)
        return found

    def hold(self, block: int) -> None:
        """Count one more text that holds a block."""
        self._idle.pop(block, None)
        self._count(block)

    def _count(self, block: int) -> None:
        if not self._counts[block]:
            self.used += 1
            self._held[block // BAY] += 1
        self._counts[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Count one text less that holds these; of those that nobody holds, the first are the first to go."""
        for block in blocks:
            if not self._counts[block]:
                raise ValueError(f"block {block} is held by nobody and cannot be dropped")
            self._counts[block] -= 1
            if not self._counts[block]:
                self.used -= 1
                self._held[block // BAY] -= 1
                if block in self._names:
                    self._idle[block] = None
                else:
                    self._release(block)
        if not self.used and not self.keeps:
            self._counts, self._free, self._spare, self._held, self._taken = [], np.ones(0, bool), 0, [], []
            self._follow(0)

    def fixed(self, block: int) -> bool:
        """True when a block must be copied before it is written: others hold it, or it is known."""
        return self._counts[block] > 1 or block in self._names

    def _release(self, block: int) -> None:
        self._free[block] = True
        self._spare += 1
        self._taken[block // BAY] -= 1

    # ------------------------------------------------------------------------------------------ where
    def _next(self, after: int, wanted: int) -> int:
        """A free block: the next one, or the first of a bay that nobody is in, with others behind it, or else any."""
        follows = after + 1
        if 0 < follows < self.capacity and self._free[follows] and (follows % BAY or not self._taken[follows // BAY]):
            return follows
        bays = self._gap(np.array(self._taken) == 0)
        if bays is None and (block := self._unvisited()) is not None:
            bay = block // BAY
            self._evict([idle for idle in self._idle if idle // BAY == bay])
            return bay * BAY
        if bays is not None:
            start, stop = bays
            spare = stop - start - -(-wanted // BAY)  # some of it for who ends where the gap begins
            return BAY * (start + max(spare, 0) // 2 if start else start)
        gap = self._gap(self._free)
        assert gap is not None, "`_make` has seen to it"
        return gap[0]

    def _gap(self, free: BoolArray) -> tuple[int, int] | None:
        """The widest stretch of what is free, from start to stop."""
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
        if not len(edges):
            return None
        widest = 2 * int(np.argmax(edges[1::2] - edges[::2]))
        return int(edges[widest]), int(edges[widest + 1])

    def _unvisited(self) -> int | None:
        """Of the bays in which no block is held, a block of the one that is unused longest."""
        return next((block for block in self._idle if not self._held[block // BAY]), None)

    def foresee(self, tokens: int) -> None:
        """Make blocks for so many tokens to come and some more, side by side, where nothing limits them."""
        if self.blocks is None:
            bays = -(-tokens // (self.block * BAY)) + 1
            gap = self._gap(np.array(self._taken) == 0)
            if gap is None or gap[1] - gap[0] < bays:
                self._grow(self.capacity + bays * BAY)

    def _make(self, count: int) -> None:
        """See that so many blocks are free: new ones while there may be, then those that were idle longest."""
        if self.blocks is None:
            if self._spare < count:
                self._grow(max(2 * self.capacity, self.capacity + -(-count // BAY) * BAY))
            return
        excess = self.used + self.cached + count - self.blocks
        if excess > 0:
            self._evict(list(self._idle)[:excess])

    def _grow(self, capacity: int) -> None:
        if (new := capacity - self.capacity) > 0:
            self._follow(capacity)
            self._counts += [0] * new
            self._free = np.append(self._free, np.ones(new, bool))
            self._spare += new
            bays = -(-capacity // BAY) - len(self._held)
            self._held += [0] * bays
            self._taken += [0] * bays

    # ----------------------------------------------------------------------------------------- known
    def remember(self, block: int, name: bytes) -> None:
        """Know a full block by a name, unless another one has it; from now on it does not change."""
        if self.keeps and name not in self._known and block not in self._names:
            self._known[name], self._names[block] = block, name

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known beginning, each held once more."""
        found: list[int] = []
        for name in names:
            block = self._known.get(name)
            if block is None:
                break
            self.hold(block)
            found.append(block)
        return found

    def forget(self) -> None:
        """Know no block any longer: those that nobody holds are free."""
        self._evict(list(self._idle))
        self._known, self._names = {}, {}
        self.era += 1

    def _evict(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            del self._idle[block]
            del self._known[self._names.pop(block)]
            self._release(block)
