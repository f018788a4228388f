"""Allocator of KV blocks: reference counts, free blocks, and the prefix cache.

A text takes whole blocks; texts with the same prefix may share them, and a shared block is copied
before it is written. Adjacent blocks are read faster, so blocks come in extents: a text starts an
extent of its own while one is free, and fills the gaps of others when none is. Where memory is
limited, full blocks are registered by a hash; those of closed texts stay cached until their memory
is needed, and a text with the same prefix takes them over. Only block numbers are handled here;
the tensors are elsewhere.
"""

from collections.abc import Callable, Iterable

import numpy as np

from sapwood.core.array_types import BoolArray
from sapwood.errors import OutOfMemory, SapwoodError

BLOCK = 16  # tokens
EXTENT = 16  # adjacent blocks; extents are read almost as fast as one piece


class BlockAllocator:
    """All KV blocks: reference counts, free blocks, cached blocks."""

    def __init__(
        self,
        block: int = BLOCK,
        follow: Callable[[int], None] = lambda _: None,
        extent: int = EXTENT,
    ) -> None:
        self.block = block  # tokens
        self.extent = extent  # adjacent blocks
        # called with the number of blocks before it grows and after it shrinks
        self._follow = follow
        self.blocks: int | None = None  # limit; None: no limit
        self.used = 0  # blocks held by texts
        self.era = 0  # times that the prefix cache was cleared
        self._counts: list[int] = []  # texts that hold each block
        self._free = np.ones(0, bool)
        self._spare = 0  # free blocks
        self._held: list[int] = []  # held blocks of each extent
        self._taken: list[int] = []  # blocks of each extent that are not free
        self._names: dict[int, bytes] = {}  # hashes of registered blocks
        self._known: dict[bytes, int] = {}  # registered blocks by hash
        # while blocks are taken; the garbage collector may drop those of a lost text meanwhile
        self._taking = False
        self._idle: dict[int, None] = {}  # cached blocks, least recently used first

    # ------------------------------------------------------------------------------- capacity
    @property
    def capacity(self) -> int:
        """Blocks that exist so far."""
        return len(self._counts)

    @property
    def cached(self) -> int:
        """Blocks of the prefix cache that no text holds."""
        return len(self._idle)

    @property
    def keeps(self) -> bool:
        """True when blocks of closed texts stay cached."""
        return self.blocks is not None

    def limit(self, tokens: int) -> None:
        """Limit the memory to this many tokens; blocks in use stay."""
        if tokens < self.block:
            raise SapwoodError(
                f"memory for {tokens} tokens holds no block; give at least {self.block}"
            )
        self._grow(tokens // self.block)
        self.blocks = tokens // self.block
        self._make(0)

    def fits(self, tokens: int) -> bool:
        """True when one more text of this many tokens fits."""
        return self.blocks is None or self.used + -(-tokens // self.block) <= self.blocks

    def check(self, count: int) -> None:
        """Raise OutOfMemory when this many more blocks exceed the limit."""
        if self.blocks is not None and self.used + count > self.blocks:
            raise OutOfMemory(
                f"{count} more blocks of {self.block} tokens do not fit: "
                f"{self.used} of {self.blocks} are in use; "
                "wait until a text is closed, or give memory more tokens"
            )

    # ------------------------------------------------------------------------------- take and drop
    def take(self, count: int, after: int = -1, ahead: int = 0) -> list[int]:
        """Allocate blocks: those behind `after` if free, else with room for `ahead` more."""
        self.check(count)
        self._taking = True
        try:
            self._make(count)
            return self._take(count, after, ahead)
        finally:
            self._taking = False

    def _take(self, count: int, after: int, ahead: int) -> list[int]:
        found: list[int] = []
        for left in range(count + ahead, ahead, -1):
            after = self._next(after, left)
            self._free[after] = False
            self._spare -= 1
            self._taken[after // self.extent] += 1
            self._count(after)
            found.append(after)
        return found

    def hold(self, block: int) -> None:
        """Add a reference to a block."""
        self._idle.pop(block, None)
        self._count(block)

    def _count(self, block: int) -> None:
        if not self._counts[block]:
            self.used += 1
            self._held[block // self.extent] += 1
        self._counts[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove a reference from each block; of cached blocks the first are evicted first."""
        for block in blocks:
            if not self._counts[block]:
                raise ValueError(f"block {block} is not held and cannot be dropped")
            self._counts[block] -= 1
            if not self._counts[block]:
                self.used -= 1
                self._held[block // self.extent] -= 1
                if block in self._names:
                    self._idle[block] = None
                else:
                    self._release(block)
        if not self.used and not self.keeps and not self._taking:
            self._counts = []
            self._free = np.ones(0, bool)
            self._spare = 0
            self._held = []
            self._taken = []
            self._follow(0)

    def fixed(self, block: int) -> bool:
        """True when a block must be copied before it is written: it is shared or registered."""
        return self._counts[block] > 1 or block in self._names

    def _release(self, block: int) -> None:
        self._free[block] = True
        self._spare += 1
        self._taken[block // self.extent] -= 1

    # ------------------------------------------------------------------------------- placement
    def _next(self, after: int, wanted: int) -> int:
        """A free block: the adjacent one, else the first of a free extent, else any."""
        follows = after + 1
        if (
            0 < follows < self.capacity
            and self._free[follows]
            and (follows % self.extent or not self._taken[follows // self.extent])
        ):
            return follows
        extents = self._gap(np.array(self._taken) == 0)
        if extents is None and (block := self._idle_block()) is not None:
            extent = block // self.extent
            self._evict([idle for idle in self._idle if idle // self.extent == extent])
            return extent * self.extent
        if extents is not None:
            start, stop = extents
            # half of the rest is left for the text that ends where the gap begins
            spare = stop - start - -(-wanted // self.extent)
            return self.extent * (start + max(spare, 0) // 2 if start else start)
        gap = self._gap(self._free)
        assert gap is not None, "`_make` has freed blocks"
        return gap[0]

    def _gap(self, free: BoolArray) -> tuple[int, int] | None:
        """The longest run of free entries, as start and stop."""
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
        if not len(edges):
            return None
        widest = 2 * int(np.argmax(edges[1::2] - edges[::2]))
        return int(edges[widest]), int(edges[widest + 1])

    def _idle_block(self) -> int | None:
        """A block of the least recently used extent in which no block is held."""
        return next((block for block in self._idle if not self._held[block // self.extent]), None)

    def preallocate(self, tokens: int) -> None:
        """Make adjacent blocks for a text of this many tokens, if memory has no limit."""
        if self.blocks is None:
            extents = -(-tokens // (self.block * self.extent)) + 1
            gap = self._gap(np.array(self._taken) == 0)
            if gap is None or gap[1] - gap[0] < extents:
                self._grow(self.capacity + extents * self.extent)

    def _make(self, count: int) -> None:
        """Free this many blocks: new ones up to the limit, then cached ones are evicted."""
        if self.blocks is None:
            if self._spare < count:
                needed = -(-count // self.extent) * self.extent
                self._grow(max(2 * self.capacity, self.capacity + needed))
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
            extents = -(-capacity // self.extent) - len(self._held)
            self._held += [0] * extents
            self._taken += [0] * extents

    # ------------------------------------------------------------------------------- prefix cache
    def register(self, block: int, name: bytes) -> None:
        """Register a full block by its hash, unless another has it; it is no longer written."""
        if self.keeps and name not in self._known and block not in self._names:
            self._known[name], self._names[block] = block, name

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Blocks of the longest cached prefix, each with one more reference."""
        found: list[int] = []
        for name in names:
            block = self._known.get(name)
            if block is None:
                break
            self.hold(block)
            found.append(block)
        return found

    def forget(self) -> None:
        """Clear the prefix cache: blocks that no text holds are free."""
        self._evict(list(self._idle))
        self._known = {}
        self._names = {}
        self.era += 1

    def _evict(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            del self._idle[block]
            del self._known[self._names.pop(block)]
            self._release(block)
