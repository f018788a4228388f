"""The block table of a text: its KV blocks, and their hashes for the prefix cache.

A block's hash covers the tenant and all tokens up to the block's end, so that texts share hashes as
far as their prefixes agree, and tenants share none. A block that is shared or registered is copied
before it is written.
"""

import hashlib
import itertools
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from sapwood.kv_cache.block_allocator import BlockAllocator


class BlockTable:
    """The KV blocks of one text in order, with their hashes."""

    def __init__(self, blocks: BlockAllocator, tenant: str = "") -> None:
        self.blocks = blocks
        self.tenant = tenant
        self.ids: list[int] = []
        self.tokens: list[int] | None = [] if blocks.keeps else None  # needed for hashes only
        self._era = blocks.era
        self._expected = 0  # tokens of the text, as far as known
        self._names: list[bytes] = []  # hashes of its full blocks
        self.close = weakref.finalize(self, _drop_all, blocks, self.ids)
        self.close.atexit = False

    def find(self, tokens: Sequence[int]) -> int:
        """Take over the cached blocks of this text; returns the number of tokens in them."""
        self._expected = len(tokens)
        if self.tokens is None:
            return 0
        size = self.blocks.block
        names = names_of(tokens, size, self.tenant)
        self.ids += self.blocks.find(names)
        self._names = names[: len(self.ids)]
        self.tokens += tokens[: len(self.ids) * size]
        return len(self.tokens)

    def needs(self, start: int, stop: int) -> int:
        """Blocks to allocate before positions `start` to `stop` can be written."""
        first = start // self.blocks.block
        end = -(-stop // self.blocks.block)
        shared = sum(self.blocks.fixed(block) for block in self.ids[first:end])
        return shared + max(end - len(self.ids), 0)

    def reserve(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Allocate writable blocks for these positions; returns (from, to) of blocks to copy."""
        ids, blocks = self.ids, self.blocks
        first = start // blocks.block
        end = -(-stop // blocks.block)
        blocks.check(self.needs(start, stop))
        copies = []
        for place in range(first, min(end, len(ids))):
            if blocks.fixed(old := ids[place]):
                [ids[place]] = blocks.take(1, ids[place - 1] if place else -1)
                copies.append((old, ids[place]))
        blocks.drop(old for old, _ in copies)
        if end > len(ids):
            ahead = -(-self._expected // blocks.block) - end
            ids += blocks.take(end - len(ids), ids[-1] if ids else -1, max(ahead, 0))
        return copies

    def commit(self, tokens: Iterable[int]) -> None:
        """Append written tokens to the text and register its full blocks."""
        if self.tokens is None:
            return
        self.tokens += tokens
        size = self.blocks.block
        for place in range(len(self._names), len(self.tokens) // size):
            before = self._names[-1] if self._names else seed(self.tenant)
            self._names.append(name_of(before, self.tokens[place * size : (place + 1) * size]))
            if self._era == self.blocks.era:
                self.blocks.register(self.ids[place], self._names[-1])

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens and drop the blocks behind them."""
        end = -(-length // self.blocks.block)
        rest = self.ids[end:]
        del self.ids[end:]
        self.blocks.drop(reversed(rest))
        if self.tokens is not None:
            del self.tokens[length:]
            del self._names[length // self.blocks.block :]

    def fork(self, length: int) -> tuple["BlockTable", list[tuple[int, int]]]:
        """A table with the first `length` tokens of this one, and (from, to) of the block to copy.

        Full blocks are shared; the last one is not, since this text may go on writing there.
        """
        full, part = divmod(length, self.blocks.block)
        last = self.blocks.take(1, self.ids[full]) if part else []
        other = BlockTable(self.blocks, self.tenant)
        other.ids += [*self.ids[:full], *last]
        for block in self.ids[:full]:
            self.blocks.hold(block)
        if self.tokens is not None:
            other.tokens = self.tokens[:length]
            other._names = self._names[:full]
            other._era = self._era
        return other, [(self.ids[full], block) for block in last]


def _drop_all(blocks: BlockAllocator, ids: list[int]) -> None:
    """Drop all blocks, the last first: without its beginning the end cannot be reused."""
    blocks.drop(reversed(ids))
    ids.clear()


def seed(tenant: str) -> bytes:
    """The hash before the first block of a tenant's texts."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest()


def name_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block of these tokens, after that of the block before it."""
    return hashlib.blake2b(before + np.asarray(tokens, np.int64).tobytes(), digest_size=16).digest()


def names_of(tokens: Sequence[int], block: int, tenant: str) -> list[bytes]:
    """Hashes of the full blocks of a text."""
    pieces = [tokens[end - block : end] for end in range(block, len(tokens) + 1, block)]
    return list(itertools.accumulate(pieces, name_of, initial=seed(tenant)))[1:]


def reserve(wanted: Sequence[tuple[BlockTable, int, int]]) -> list[tuple[int, int]]:
    """Allocate blocks for positions of several tables, all or none; returns blocks to copy."""
    for table, _, _ in wanted[:1]:
        table.blocks.check(sum(table.needs(start, stop) for table, start, stop in wanted))
    return [copy for table, start, stop in wanted for copy in table.reserve(start, stop)]
