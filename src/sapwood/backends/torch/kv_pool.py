"""Keys and values of all sessions, in KV blocks of one pool.

The positions of a session map to slots through its block table. Contiguous blocks are read as one
run, so that a text whose blocks are contiguous is read like a buffer of its own. With a prefix
cache, the hidden states that drafters read are stored beside keys and values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.kv_slots import KvLayout, KvSlots, settled
from sapwood.core.array_types import IntArray
from sapwood.errors import SapwoodError
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, reserve

# unused slots: planes a power of two apart would compete for the same cache sets
PAD = 17


class KvPool:
    """Buffers [planes, heads, slots, width], one for each shape of the layout."""

    def __init__(self, layout: KvLayout) -> None:
        self.layout = layout
        self.memory = BlockAllocator(follow=self._follow)
        self.settle: Callable[[], None] = settled  # see `KvSlots`
        self.buffers = self._empty(0)
        # layer -> its input, [slots, width], with a prefix cache
        self.states: dict[int, Tensor] = {}

    def _empty(self, slots: int) -> list[Tensor]:
        slots += PAD if slots else 0
        return [
            torch.empty(
                (count, plane.heads, slots, plane.width), dtype=plane.dtype, device=plane.device
            )
            for plane, count in zip(self.layout.shapes, self.layout.counts, strict=True)
        ]

    @torch.inference_mode()
    def _follow(self, blocks: int) -> None:
        """Resize the buffers to so many blocks."""
        self.settle()
        slots = blocks * self.memory.block
        try:
            buffers = self._empty(slots)
            states = {
                layer: held.new_empty(slots, held.shape[1]) for layer, held in self.states.items()
            }
        except RuntimeError as error:
            raise SapwoodError(
                f"this machine has no memory for the keys and values of {slots} tokens"
            ) from error
        for new, held in zip(buffers, self.buffers, strict=True):
            kept = min(held.shape[2], slots)
            new[:, :, :kept] = held[:, :, :kept]
        for layer, held in self.states.items():
            kept = min(len(held), slots)
            states[layer][:kept] = held[:kept]
        self.buffers = buffers
        self.states = states

    def start(self, tokens: Sequence[int], tenant: str) -> "PagedSlots":
        """Slots of a new session, with its cached prefix in them."""
        table = BlockTable(self.memory, tenant)
        found = table.find(tokens)
        self.memory.preallocate(len(tokens) - found)
        return PagedSlots(self, table, found)

    def reserve(self, wanted: Sequence[tuple["PagedSlots", int, int]]) -> None:
        """Reserve positions `start` to `stop` of each for writing, or raise and change nothing."""
        wanted = [item for item in wanted if item[0].table.needs(*item[1:])]
        if wanted:
            self.copy(reserve([(slots.table, start, stop) for slots, start, stop in wanted]))
            for slots, _, _ in wanted:
                slots.changed()

    @torch.inference_mode()
    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, in order."""
        size = self.memory.block
        for old, new in copies:
            source = slice(old * size, (old + 1) * size)
            target = slice(new * size, (new + 1) * size)
            for buffer in self.buffers:
                buffer[:, :, target] = buffer[:, :, source]
            for states in self.states.values():
                states[target] = states[source]


class PagedSlots(KvSlots):
    """The slots of one session, in its blocks."""

    def __init__(self, pool: KvPool, table: BlockTable, found: int = 0) -> None:
        self.pool = pool
        self.table = table
        self.layout = pool.layout
        self.found = found  # cached prefix of the text, tokens
        self.changed()

    def changed(self) -> None:
        """Drop what was derived from the block table."""
        self._ids: IntArray | None = None
        self._runs: list[list[int]] = []  # first slot and length of each run of contiguous blocks

    def _block_ids(self) -> IntArray:
        """The block ids; computes the runs of contiguous blocks."""
        if self._ids is None:
            size = self.table.blocks.block
            self._ids = ids = np.array(self.table.ids, np.int64)
            firsts = [0, *(np.flatnonzero(ids[1:] != ids[:-1] + 1) + 1).tolist(), len(ids)]
            self._runs = [
                [self.table.ids[a] * size, (b - a) * size] for a, b in pairwise(firsts) if a < b
            ]
        return self._ids

    @property
    def buffers(self) -> list[Tensor]:  # type: ignore[override]
        """The buffers of the pool, shared by all sessions."""
        return self.pool.buffers

    @property
    def settle(self) -> Callable[[], None]:
        """Wait for the pass that writes to the pool."""
        return self.pool.settle

    @settle.setter
    def settle(self, settle: Callable[[], None]) -> None:
        """Set the wait of all sessions of the pool."""
        self.pool.settle = settle

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        """True with a prefix cache."""
        return self.table.tokens is not None

    def reserve(self, size: int, used: int) -> None:
        """Reserve positions up to `size` for writing; the first `used` keep their content."""
        self.pool.reserve([(self, used, size)])

    def runs(self, stop: int) -> IntArray:
        """First slot and length of each run of the first `stop` positions, [runs, 2]."""
        self._block_ids()
        found = []
        left = stop
        for first, count in self._runs:
            if left <= 0:
                break
            found.append([first, min(count, left)])
            left -= count
        return np.array(found, np.int64)

    def places(self, places: Sequence[int] | range) -> IntArray:
        """Slots of these positions, [positions]."""
        size = self.table.blocks.block
        blocks = self._block_ids()
        # a range is slow to convert
        wanted: IntArray = (
            np.arange(places.start, places.stop)
            if isinstance(places, range)
            else np.asarray(places, np.int64)
        )
        if len(self._runs) == 1:
            return wanted + self._runs[0][0]
        block, rest = np.divmod(wanted, size)
        found: IntArray = blocks[block] * size + rest
        return found

    def where(self, places: range) -> slice | Tensor:
        """Slots of consecutive positions, as an index into buffers."""
        self._block_ids()
        if len(self._runs) != 1:
            return super().where(places)
        first = self._runs[0][0]
        return slice(first + places.start, first + places.stop)

    def copy(self, used: int) -> "PagedSlots":
        """A copy of the first `used` positions: full blocks are shared, the last one is copied."""
        table, copies = self.table.fork(used)
        self.pool.copy(copies)
        return PagedSlots(self.pool, table)

    def commit(self, tokens: Sequence[int], length: int, states: Mapping[int, Tensor]) -> None:
        """Record tokens that end at `length`, and their states for the prefix cache."""
        if self.keeps:
            self._keep(self.where(range(length - len(tokens), length)), states)
            self.table.commit(tokens)
        self.cut(length)

    @torch.inference_mode()
    def _keep(self, where: slice | Tensor, states: Mapping[int, Tensor]) -> None:
        for layer, rows in states.items():
            if layer not in self.pool.states:
                self.pool.states[layer] = rows.new_empty(self.buffers[0].shape[2], rows.shape[1])
            self.pool.states[layer][where] = rows

    def states(self) -> dict[int, Tensor]:
        """Hidden states of the cached prefix, layer -> [tokens, width], copied."""
        where = self.where(range(self.found))
        return {layer: states[where].clone() for layer, states in self.pool.states.items()}

    def cut(self, length: int) -> None:
        """Free the blocks after the first `length` positions."""
        before = len(self.table.ids)
        self.table.truncate(length)
        if len(self.table.ids) != before:
            self.changed()

    def release(self) -> None:
        """Free all blocks."""
        self.table.close()


def reserve_all(wanted: Sequence[tuple[KvSlots, int, int]]) -> None:
    """Reserve positions `start` to `stop` of several sessions, or raise and change nothing."""
    pools: dict[int, tuple[KvPool, list[tuple[PagedSlots, int, int]]]] = {}
    for slots, start, stop in wanted:
        if isinstance(slots, PagedSlots):
            pools.setdefault(id(slots.pool), (slots.pool, []))[1].append((slots, start, stop))
        else:
            slots.reserve(stop, start)
    for pool, items in pools.values():
        pool.reserve(items)
