"""Memory in blocks of a few tokens: who holds which, and what is still known of texts that are gone.

A text takes whole blocks, wherever they lie; texts that begin alike may share them, and a shared block
is copied before it is written. What lies side by side is read faster, so blocks come in bays: a text
begins a bay of its own while there is one, and fills the gaps of others when there is none. Where memory
is limited, full blocks are known by a name, a hash over the tenant and all tokens up to the block's end;
those of closed texts stay until their room is needed, and whoever begins with the same text takes them up.
Numbers alone: what is in a block is kept elsewhere.
"""

import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence

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


class Table:
    """The blocks of one text in order, and what they are known by."""

    def __init__(self, blocks: Blocks, tenant: str = "") -> None:
        self.blocks, self.tenant = blocks, tenant
        self.ids: list[int] = []
        self.tokens: list[int] | None = [] if blocks.keeps else None  # the text, where its blocks may be known
        self._era = blocks.era
        self._meant = 0  # tokens that are to come here, as far as is known
        self._names: list[bytes] = []  # of its full blocks
        self.close = weakref.finalize(self, _leave, blocks, self.ids)
        self.close.atexit = False

    def find(self, tokens: Sequence[int]) -> int:
        """Take up the blocks that are known of this text; how many tokens they hold."""
        self._meant = len(tokens)
        if self.tokens is None:
            return 0
        size = self.blocks.block
        names = names_of(tokens, size, self.tenant)
        self.ids += self.blocks.find(names)
        self._names = names[: len(self.ids)]
        self.tokens += tokens[: len(self.ids) * size]
        return len(self.tokens)

    def needs(self, start: int, stop: int) -> int:
        """Blocks that must be had before the places from `start` to `stop` can be written."""
        first, end = start // self.blocks.block, -(-stop // self.blocks.block)
        shared = sum(self.blocks.fixed(block) for block in self.ids[first:end])
        return shared + max(end - len(self.ids), 0)

    def reserve(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Have blocks of one's own for these places; (from, to) of those that must be copied to be so."""
        ids, blocks = self.ids, self.blocks
        first, end = start // blocks.block, -(-stop // blocks.block)
        blocks.check(self.needs(start, stop))
        copies = []
        for place in range(first, min(end, len(ids))):
            if blocks.fixed(old := ids[place]):
                [ids[place]] = blocks.take(1, ids[place - 1] if place else -1)
                copies.append((old, ids[place]))
        blocks.drop(old for old, _ in copies)
        if end > len(ids):
            ahead = -(-self._meant // blocks.block) - end
            ids += blocks.take(end - len(ids), ids[-1] if ids else -1, max(ahead, 0))
        return copies

    def commit(self, tokens: Iterable[int]) -> None:
        """Note what was written behind the text; full blocks are known from now on."""
        if self.tokens is None:
            return
        self.tokens += tokens
        size = self.blocks.block
        for place in range(len(self._names), len(self.tokens) // size):
            before = self._names[-1] if self._names else seed(self.tenant)
            self._names.append(name_of(before, self.tokens[place * size : (place + 1) * size]))
            if self._era == self.blocks.era:
                self.blocks.remember(self.ids[place], self._names[-1])

    def cut(self, length: int) -> None:
        """Give back the blocks behind the first `length` tokens, and forget the tokens there."""
        end = -(-length // self.blocks.block)
        rest = self.ids[end:]
        del self.ids[end:]
        self.blocks.drop(reversed(rest))
        if self.tokens is not None:
            del self.tokens[length:]
            del self._names[length // self.blocks.block :]

    def fork(self, length: int) -> tuple["Table", list[tuple[int, int]]]:
        """Another text with the first `length` tokens of this one, and (from, to) of the block that must be copied.

        Full blocks are shared; the last one is not, since this text may be writing behind its end.
        """
        full, part = divmod(length, self.blocks.block)
        last = self.blocks.take(1, self.ids[full]) if part else []
        other = Table(self.blocks, self.tenant)
        other.ids += [*self.ids[:full], *last]
        for block in self.ids[:full]:
            self.blocks.hold(block)
        if self.tokens is not None:
            other.tokens, other._names, other._era = self.tokens[:length], self._names[:full], self._era
        return other, [(self.ids[full], block) for block in last]


def _leave(blocks: Blocks, ids: list[int]) -> None:
    """Give up all blocks, the end of the text first: without its beginning it is worth nothing."""
    blocks.drop(reversed(ids))
    ids.clear()


def seed(tenant: str) -> bytes:
    """The name before the first block of a tenant's texts."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest()


def name_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a block of these tokens after another one."""
    return hashlib.blake2b(before + np.asarray(tokens, np.int64).tobytes(), digest_size=16).digest()


def names_of(tokens: Sequence[int], block: int, tenant: str) -> list[bytes]:
    """Names of the full blocks of a text."""
    pieces = [tokens[end - block : end] for end in range(block, len(tokens) + 1, block)]
    return list(itertools.accumulate(pieces, name_of, initial=seed(tenant)))[1:]


def reserve(wanted: Sequence[tuple[Table, int, int]]) -> list[tuple[int, int]]:
    """Have blocks for places (start, stop) of several tables, or refuse and change nothing; what must be copied."""
    for table, _, _ in wanted[:1]:
        table.blocks.check(sum(table.needs(start, stop) for table, start, stop in wanted))
    return [copy for table, start, stop in wanted for copy in table.reserve(start, stop)]
