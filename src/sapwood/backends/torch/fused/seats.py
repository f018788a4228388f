"""Keys and values of a head for several requests at once, in buffers that captured growths can rely on."""

import weakref

import torch
from torch import Tensor

from sapwood.backends.torch.fused.layer import Layer
from sapwood.tree import CAPACITY

SLOTS = 2048  # rows a request has room for at first


class Pool:
    """Slots of all seats, [seats, kv heads, slots, d]; they grow by doubling, and then captured growths are void."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.free = layer, [0]
        self.keys, self.values = (self._empty(1, SLOTS) for _ in range(2))
        self.age = 0  # how often the slots have moved

    def _empty(self, seats: int, slots: int) -> Tensor:
        layer = self.layer
        # zeros: what a mask hides must still be a number
        return layer.embedding.new_zeros(seats, layer.kv_heads, slots, layer.head_width)

    def take(self, slots: int) -> int:
        """A free seat with room for so many rows."""
        seats = len(self.keys)
        if not self.free:
            self.free = list(range(seats, 2 * seats))
            seats *= 2
        self.make_room(slots, seats)
        return self.free.pop()

    def release(self, seat: int) -> None:
        """Take a seat back."""
        self.free.append(seat)

    def make_room(self, slots: int, seats: int = 0) -> None:
        """Room for at least so many rows in every seat."""
        old_seats, _, old_slots, _ = self.keys.shape
        if max(seats, old_seats) > old_seats or slots > old_slots:
            self._grow(slots, max(seats, old_seats))

    @torch.inference_mode()
    def _grow(self, slots: int, seats: int) -> None:
        old_seats, _, old_slots, _ = self.keys.shape
        slots = old_slots if slots <= old_slots else max(slots, 2 * old_slots)
        for name in ("keys", "values"):
            old, new = getattr(self, name), self._empty(seats, slots)
            new[:old_seats, :, :old_slots] = old
            setattr(self, name, new)
        self.age += 1


class Seat:
    """The head's rows of one request: those of the text first, those of a tree in flight behind them."""

    def __init__(self, pool: Pool, text: int) -> None:
        self.pool, self.index, self.text = pool, pool.take(text + CAPACITY), 0
        self._leave = weakref.finalize(self, pool.release, self.index)  # also where a request fails before it begins
        self.outputs = pool.layer.embedding.new_empty(CAPACITY, pool.layer.width)  # of tree rows, the root's first

    @property
    def keys(self) -> Tensor:
        """Keys of the rows, [1, kv heads, slots, d]."""
        return self.pool.keys[self.index : self.index + 1]

    @property
    def values(self) -> Tensor:
        """Values of the rows."""
        return self.pool.values[self.index : self.index + 1]

    def write(self, key: Tensor, value: Tensor, start: int) -> None:
        """Put rows at slot `start`."""
        stop = start + key.shape[2]
        self.pool.make_room(stop)
        self.keys[:, :, start:stop] = key
        self.values[:, :, start:stop] = value

    def take(self, rows: list[int]) -> Tensor:
        """Outputs of these rows of the tree, [rows, width]."""
        return self.outputs[torch.tensor(rows, device=self.outputs.device)]

    def close(self) -> None:
        """Give the seat back."""
        self._leave()
