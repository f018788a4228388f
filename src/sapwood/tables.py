"""Which blocks a text lies in, and what they are known by.

A block's name is a hash over the tenant and all tokens up to the block's end, so that texts share names as
far as they begin alike, and one tenant's are nothing to another. A block that others hold, or that is known,
is copied before it is written.
"""

import hashlib
import itertools
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from sapwood.blocks import Blocks


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
