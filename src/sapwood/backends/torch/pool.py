"""Keys and values of all sessions, in blocks of one pool.

The places of a session are numbered as its text is; its table says in which block each lies. Blocks that
lie one after the other are read as one run, so that a text which could grow where it began is read as if
it had a buffer of its own. Where blocks outlive their sessions, what drafters read of a text, its hidden
states, lies beside its keys and values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Layout, Slots, settled
from sapwood.blocks import Blocks
from sapwood.errors import SapwoodError
from sapwood.tables import Table, reserve

PAD = 17  # slots that nobody uses: planes a power of two apart would crowd the same lines of the caches


class Pool:
    """Buffers [planes, heads, slots, width], one for each shape of the layout; a block takes slots side by side."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.memory = layout, Blocks(follow=self._follow)
        self.settle: Callable[[], None] = settled  # see `Slots`
        self.buffers = self._empty(0)
        self.states: dict[int, Tensor] = {}  # layer -> its input, [slots, width], where blocks outlive sessions

    def _empty(self, slots: int) -> list[Tensor]:
        slots += PAD if slots else 0
        return [
            torch.empty((count, plane.heads, slots, plane.width), dtype=plane.dtype, device=plane.device)
            for plane, count in zip(self.layout.shapes, self.layout.counts, strict=True)
        ]

    @torch.inference_mode()
    def _follow(self, blocks: int) -> None:
        """Have slots for so many blocks."""
        self.settle()
        slots = blocks * self.memory.block
        try:
            buffers = self._empty(slots)
            states = {layer: held.new_empty(slots, held.shape[1]) for layer, held in self.states.items()}
        except RuntimeError as error:
            raise SapwoodError(f"this machine has no memory for the keys and values of {slots} tokens") from error
        for new, held in zip(buffers, self.buffers, strict=True):
            kept = min(held.shape[2], slots)
            new[:, :, :kept] = held[:, :, :kept]
        for layer, held in self.states.items():
            kept = min(len(held), slots)
            states[layer][:kept] = held[:kept]
        self.buffers, self.states = buffers, states

    def start(self, tokens: Sequence[int], tenant: str) -> "Paged":
        """Slots of a new session, with what is known of its text in them."""
        table = Table(self.memory, tenant)
        found = table.find(tokens)
        self.memory.foresee(len(tokens) - found)
        return Paged(self, table, found)

    def reserve(self, wanted: Sequence[tuple["Paged", int, int]]) -> None:
        """Make places from `start` to `stop` of each ready to be written, or refuse and change nothing."""
        wanted = [item for item in wanted if item[0].table.needs(*item[1:])]
        if wanted:
            self.copy(reserve([(slots.table, start, stop) for slots, start, stop in wanted]))
            for slots, _, _ in wanted:
                slots.changed()

    @torch.inference_mode()
    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, one after the other."""
        size = self.memory.block
        for old, new in copies:
            source, target = slice(old * size, (old + 1) * size), slice(new * size, (new + 1) * size)
            for buffer in self.buffers:
                buffer[:, :, target] = buffer[:, :, source]
            for states in self.states.values():
                states[target] = states[source]


class Paged(Slots):
    """The slots of one session: those of its blocks, in order."""

    def __init__(self, pool: Pool, table: Table, found: int = 0) -> None:
        self.pool, self.table, self.layout = pool, table, pool.layout
        self.found = found  # places of a text that was known at the start
        self.changed()

    def changed(self) -> None:
        """The blocks are others than they were."""
        self._ids: IntArray | None = None
        self._runs: list[list[int]] = []  # first slot and number of slots of blocks side by side

    def _look(self) -> IntArray:
        """The blocks, and where those that lie side by side begin and end."""
        if self._ids is None:
            size = self.table.blocks.block
            self._ids = ids = np.array(self.table.ids, np.int64)
            firsts = [0, *(np.flatnonzero(ids[1:] != ids[:-1] + 1) + 1).tolist(), len(ids)]
            self._runs = [[self.table.ids[a] * size, (b - a) * size] for a, b in pairwise(firsts) if a < b]
        return self._ids

    @property
    def buffers(self) -> list[Tensor]:  # type: ignore[override]
        """Those of the pool, which hold the slots of others too."""
        return self.pool.buffers

    @property
    def settle(self) -> Callable[[], None]:
        """Waits for the pass that writes to the pool, whosever slots they are."""
        return self.pool.settle

    @settle.setter
    def settle(self, settle: Callable[[], None]) -> None:
        """Have everybody wait for this pass."""
        self.pool.settle = settle

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        """True where blocks outlive sessions."""
        return self.table.tokens is not None

    def reserve(self, size: int, used: int) -> None:
        """Make places up to `size` ready to be written; the first `used` keep what they hold."""
        self.pool.reserve([(self, used, size)])

    def runs(self, stop: int) -> IntArray:
        """First slot and number of slots of each stretch that the first `stop` places take, [runs, 2]."""
        self._look()
        found, left = [], stop
        for first, count in self._runs:
            if left <= 0:
                break
            found.append([first, min(count, left)])
            left -= count
        return np.array(found, np.int64)

    def places(self, places: Sequence[int] | range) -> IntArray:
        """Slots of these places of the text, [places]."""
        size, blocks, wanted = self.table.blocks.block, self._look(), np.asarray(places, np.int64)
        if len(self._runs) == 1:
            return wanted + self._runs[0][0]
        block, rest = np.divmod(wanted, size)
        found: IntArray = blocks[block] * size + rest
        return found

    def copy(self, used: int) -> "Paged":
        """The first `used` places: full blocks are shared, the last one is copied."""
        table, copies = self.table.fork(used)
        self.pool.copy(copies)
        return Paged(self.pool, table)

    def commit(self, tokens: Sequence[int], length: int, states: Mapping[int, Tensor]) -> None:
        """Note tokens that end the text at `length`, and their states [tokens, width] where others may want them."""
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
        """States of the text that was known at the start, layer -> [tokens, width], in memory of their own."""
        where = self.where(range(self.found))
        return {layer: states[where].clone() for layer, states in self.pool.states.items()}

    def cut(self, length: int) -> None:
        """Give back the blocks behind the first `length` places."""
        before = len(self.table.ids)
        self.table.cut(length)
        if len(self.table.ids) != before:
            self.changed()

    def release(self) -> None:
        """Give back all blocks."""
        self.table.close()


def reserve_all(wanted: Sequence[tuple[Slots, int, int]]) -> None:
    """Make places from `start` to `stop` of several sessions ready to be written, or refuse and change nothing."""
    pools: dict[int, tuple[Pool, list[tuple[Paged, int, int]]]] = {}
    for slots, start, stop in wanted:
        if isinstance(slots, Paged):
            pools.setdefault(id(slots.pool), (slots.pool, []))[1].append((slots, start, stop))
        else:
            slots.reserve(stop, start)
    for pool, items in pools.values():
        pool.reserve(items)
