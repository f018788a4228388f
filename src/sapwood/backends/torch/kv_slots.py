"""Keys and values of a session, in slots for the committed text and the tree in flight.

Slot i below `length` holds the committed token i; node i of the tree in flight is written to slot
length + i. Keeping a path moves its nodes to the front of the tail. All layers of one shape share
one buffer, so that a move is a single gather.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sapwood.core.array_types import IntArray

SPARE = 256  # extra slots of a new session


def settled() -> None:
    """Return at once: no pass is running."""


@dataclass(frozen=True, slots=True)
class KvPlane:
    """Shape, dtype and device of the keys or values of one layer."""

    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


@dataclass
class KvLayout:
    """Buffer, and index in it, of each layer's keys and values."""

    shapes: list[KvPlane] = field(default_factory=list)  # one per buffer
    counts: list[int] = field(default_factory=list)  # planes in each buffer
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)  # layer -> (buffer, index)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)

    def place(self, state: torch.Tensor) -> tuple[int, int]:
        """Buffer and index for states of this shape, [1, heads, rows, width]."""
        plane = KvPlane(state.shape[1], state.shape[3], state.dtype, state.device)
        if plane not in self.shapes:
            self.shapes.append(plane)
            self.counts.append(0)
        buffer = self.shapes.index(plane)
        self.counts[buffer] += 1
        return buffer, self.counts[buffer] - 1


class KvSlots:
    """The buffers of one session, [planes, heads, slots, width] each; they grow by doubling.

    Subclasses map positions to other slots with `places`.
    """

    writer: Any = None  # who wrote the tree in flight last, where several may
    queries: Any = None  # of the last pass, where the network records them (RecordedQueries)
    contiguous = False  # True if a sequence's slots lie in one piece, as in the CUDA pool
    settle: Callable[[], None] = staticmethod(
        settled
    )  # waits for the pass that writes here, if it is still running

    def __init__(self, layout: KvLayout, used: int) -> None:
        self.layout = layout
        self.size = used + SPARE
        self.buffers = [self._empty(buffer) for buffer in range(len(layout.shapes))]

    def _empty(self, buffer: int) -> torch.Tensor:
        plane = self.layout.shapes[buffer]
        count = self.layout.counts[buffer]
        shape = (count, plane.heads, self.size, plane.width)
        return torch.empty(shape, dtype=plane.dtype, device=plane.device)

    def reserve(self, size: int, used: int) -> None:
        """Reserve `size` slots; the first `used` keep their content."""
        if size <= self.size:
            return
        old = self.buffers
        self.size = max(size, 2 * self.size)
        self.buffers = [self._empty(buffer) for buffer in range(len(old))]
        self._take(old, used)

    @torch.inference_mode()
    def copy(self, used: int) -> "KvSlots":
        """A copy of the first `used` slots."""
        new = KvSlots(self.layout, used)
        new._take(self.buffers, used)
        return new

    def _take(self, others: Sequence[torch.Tensor], used: int) -> None:
        for mine, other in zip(self.buffers, others, strict=True):
            mine[:, :, :used] = other[:, :, :used]

    # -------------------------------------------------------------------------- positions to slots
    def runs(self, stop: int) -> IntArray:
        """First slot and length of each run of the first `stop` positions, [runs, 2]."""
        return np.array([[0, stop]])

    def places(self, places: Sequence[int] | range) -> IntArray:
        """Slots of these positions, [positions]."""
        return np.asarray(places, np.int64)

    def where(self, places: range) -> slice | torch.Tensor:
        """Slots of consecutive positions, as an index into buffers."""
        slots = self.places(places)
        if np.all(np.diff(slots) == 1):
            first = int(slots[0]) if len(slots) else 0
            return slice(first, first + len(slots))
        return torch.from_numpy(slots).to(self.buffers[0].device)

    @torch.inference_mode()
    def move(self, places: Sequence[int], start: int) -> None:
        """Copy these positions to `start`, `start` + 1, ...; reads before it writes."""
        source = self.places(places)
        target = self.where(range(start, start + len(places)))
        for buffer in self.buffers:
            if buffer.device.type == "cpu":  # torch's threads would still spin during the next pass
                array = buffer.view(torch.uint8).numpy()
                array[:, :, target] = array.take(source, 2)
            else:
                buffer[:, :, target] = buffer.index_select(
                    2, torch.from_numpy(source).to(buffer.device)
                )

    @torch.inference_mode()
    def take(self, other: "KvSlots", start: int, stop: int, place: int) -> None:
        """Copy positions `start` to `stop` of another session to `place`, `place` + 1, ..."""
        source = other.where(range(start, stop))
        target = self.where(range(place, place + stop - start))
        for mine, theirs in zip(self.buffers, other.buffers, strict=True):
            mine[:, :, target] = theirs[:, :, source]

    # ------------------------------------------------------------------------------ committed text
    keeps = False  # True with a prefix cache

    def commit(
        self, tokens: Sequence[int], length: int, states: Mapping[int, torch.Tensor]
    ) -> None:
        """Record committed tokens and their states, for a prefix cache; here there is none."""

    def cut(self, length: int) -> None:
        """Free the slots after the first `length` positions, in a shared pool."""

    def release(self) -> None:
        """Free all slots, in a shared pool."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Positions that one session's rows of a pass are written to."""

    slots: KvSlots
    start: int
    rows: int
