"""Keys and values of all sessions in one buffer that captured passes can rely on; a session is a seat.

Slot i below a seat's length holds its committed token i; node i of the tree in flight lies in slot
length + i. Keeping a path is one gather over all layers.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import weakref
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cache import Layout, Slots
from sapwood.backends.torch.fused.launch import options, wait
from sapwood.backends.torch.fused.qkv import Heads
from sapwood.errors import OutOfMemory

CHUNK = 32  # slots that one launch moves


@triton.jit
def shift(pool, sources, first, start, count, plane, width: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr):
    """Copy the slots first + sources [count] of one plane to start, start + 1, ..."""
    index, dims = tl.arange(0, tile), tl.program_id(1) * piece + tl.arange(0, piece)
    base = pool + tl.program_id(0).to(tl.int64) * plane + dims[None, :]
    there = (index < count)[:, None] & (dims < width)[None, :]
    source = first + tl.load(sources + index, index < count, 0)
    found = tl.load(base + source[:, None] * width, there, 0.0)
    tl.debug_barrier()  # what is read here may be overwritten below
    tl.store(base + (start + index).to(tl.int64)[:, None] * width, found, there)


@triton.jit(do_not_specialize=["first", "start", "count"], do_not_specialize_on_alignment=["sources"])
def _move(
    pool, sources, first, start, count, plane, width: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr
):  # fmt: skip
    wait()
    shift(pool, sources, first, start, count, plane, width, tile, piece)


@triton.jit
def _keep(pool, path, facts, plane, width: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr):
    wait()
    first, length, stay, stop = tl.load(facts), tl.load(facts + 3), tl.load(facts + 4), tl.load(facts + 5)
    shift(pool, path + stay, first + length, first + length + stay, stop - stay, plane, width, tile, piece)


class Pool:
    """Slots of all seats, [2 * layers, seats, slots, kv heads, width]: keys and values of a layer side by side."""

    def __init__(self, layers: int, heads: Heads, like: Tensor, slots: int) -> None:
        self.layers, self.heads, self.like = layers, heads, like
        self.kept = self._empty(1, slots)
        self.free = [0]
        self.age = 0  # how often the buffer has moved, which voids captured passes
        self._most: int | None = None  # slots of all seats together

    def _empty(self, seats: int, slots: int) -> Tensor:
        # zeros: what is hidden from a row is still multiplied by nothing, and must be a number
        return self.like.new_zeros(2 * self.layers, seats, slots, self.heads.keys, self.heads.width)

    @property
    def seats(self) -> int:
        """Sessions that fit."""
        return self.kept.shape[1]

    @property
    def slots(self) -> int:
        """Slots of each seat."""
        return self.kept.shape[2]

    # -------------------------------------------------------------------------------- how much there is
    cached = 0  # nothing is kept of closed sessions

    @property
    def block(self) -> int:
        """Tokens of a seat, which a text takes whole."""
        return self.slots

    @property
    def blocks(self) -> int | None:
        """Most seats there may be; None where nothing limits them."""
        return None if self._most is None else max(self._most // self.slots, self.seats)

    @property
    def used(self) -> int:
        """Seats that are taken."""
        return self.seats - len(self.free)

    def fits(self, tokens: int) -> bool:
        """True when one more text of so many tokens has room."""
        slots = max(tokens, self.slots)
        return self._most is None or (self.used + 1) * slots <= max(self._most, self.seats * self.slots)

    def limit(self, tokens: int) -> None:
        """Set how many slots there may be in all; what is there already stays."""
        self._most = tokens

    def _check(self, seats: int, slots: int) -> None:
        if self._most is not None and seats * slots > self._most:
            raise OutOfMemory(
                f"{seats} seats of {slots} tokens do not fit memory's {self._most}; "
                "wait until a text is closed, or give memory more tokens"
            )

    def planes(self, layer: int) -> Tensor:
        """Keys and values of a layer, [2, seats, slots, kv heads, width]."""
        return self.kept[2 * layer : 2 * layer + 2]

    def take(self) -> int:
        """A free seat."""
        if not self.free:
            self._check(self.seats + 1, self.slots)
            most = 2 * self.seats if self._most is None else self._most // self.slots
            self._grow(min(2 * self.seats, most), self.slots)
        return self.free.pop()

    def release(self, seat: int) -> None:
        """Give a seat back."""
        self.free.append(seat)

    def reserve(self, slots: int) -> None:
        """Room for at least so many slots in every seat."""
        if slots > self.slots:
            self._check(self.seats, slots)
            most = 2 * self.slots if self._most is None else self._most // self.seats
            self._grow(self.seats, max(slots, min(2 * self.slots, most)))

    def _grow(self, seats: int, slots: int) -> None:
        old, self.kept = self.kept, self._empty(seats, slots)
        self.kept[:, : old.shape[1], : old.shape[2]] = old
        self.free += range(old.shape[1], seats)
        self.age += 1

    def copy(self, origin: int, seat: int, used: int) -> None:
        """Give one seat the first slots of another."""
        self.kept[:, seat, :used] = self.kept[:, origin, :used]

    def move(self, seat: int, sources: Tensor, start: int, base: int = 0) -> None:
        """Copy the seat's slots base + sources, ascending and never below their targets, to start, start + 1, ..."""
        width = self.heads.keys * self.heads.width
        first, piece = seat * self.slots, 64
        for at in range(0, len(sources), CHUNK):
            part = sources[at : at + CHUNK]
            _move[2 * self.layers, triton.cdiv(width, piece)](
                self.kept, part, first + base, first + start + at, len(part), self.kept.stride(0), width, CHUNK, piece,
                **options(),
            )  # fmt: skip

    def keep(self, path: Tensor, facts: Tensor) -> None:
        """Put the nodes of a walked path in their place, as `Facts` has it; at most CHUNK of them."""
        width, piece = self.heads.keys * self.heads.width, 64
        _keep[2 * self.layers, triton.cdiv(width, piece)](
            self.kept, path, facts, self.kept.stride(0), width, CHUNK, piece, **options()
        )


class Seat(Slots):
    """The slots of one session; they come back when nobody holds the seat."""

    seated = True

    def __init__(self, pool: Pool, layout: Layout, used: int) -> None:
        self.pool, self.layout = pool, layout
        self.index = pool.take()
        self._leave = weakref.finalize(self, pool.release, self.index)
        self.reserve(used, 0)

    def release(self) -> None:
        """Give the seat back."""
        self._leave()

    @property
    def first(self) -> int:
        """Where the seat begins among all slots."""
        return self.index * self.pool.slots

    def reserve(self, size: int, used: int) -> None:
        """Make room for `size` slots; all keep what they hold."""
        self.pool.reserve(size)

    @torch.inference_mode()
    def copy(self, used: int) -> "Seat":
        """The first `used` slots, in a seat of their own."""
        new = Seat(self.pool, self.layout, used)
        self.pool.copy(self.index, new.index, used)
        return new

    @torch.inference_mode()
    def gather(self, sources: Tensor, start: int, base: int) -> None:
        """Copy the slots base + sources, as `Pool.move` does; they are known on the device alone."""
        self.pool.move(self.index, sources, start, base)

    @torch.inference_mode()
    def move(self, slots: Sequence[int], start: int) -> None:
        """Copy these slots, ascending and never below their targets, to `start`, `start` + 1, ..."""
        self.pool.move(self.index, torch.tensor(slots, device=self.pool.kept.device), start)
