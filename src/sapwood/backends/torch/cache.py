"""Keys and values of a session, in slots that a tree can be written to and cut back in.

Slot i below `length` holds the committed token i; node i of the tree in flight is written to slot
length + i. Keeping a path moves its nodes to the front of the tail. All layers of one shape share
one buffer, so that a move is a single gather.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sapwood.arrays import IntArray

SPARE = 256  # slots a new session has beyond its first text


def settled() -> None:
    """Nothing is under way."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values of one layer: what they look like and where they are kept."""

    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


@dataclass
class Layout:
    """Which buffer, and which index in it, each layer's keys and values use."""

    shapes: list[Plane] = field(default_factory=list)  # one per buffer
    counts: list[int] = field(default_factory=list)  # planes in each buffer
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)  # layer -> (buffer, index)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)

    def place(self, state: torch.Tensor) -> tuple[int, int]:
        """Find room for states of this shape, [1, heads, rows, width]."""
        plane = Plane(state.shape[1], state.shape[3], state.dtype, state.device)
        if plane not in self.shapes:
            self.shapes.append(plane)
            self.counts.append(0)
        buffer = self.shapes.index(plane)
        self.counts[buffer] += 1
        return buffer, self.counts[buffer] - 1


class Slots:
    """The buffers of one session, [planes, heads, slots, width] each; they grow by doubling.

    Others may keep the places of a text elsewhere: in slots that `places` names.
    """

    writer: Any = None  # who wrote the tree in flight last, where several may
    seated = False  # True where the places lie as fused passes want them
    settle: Callable[[], None] = staticmethod(settled)  # waits for the pass that writes here, if it is still running

    def __init__(self, layout: Layout, used: int) -> None:
        self.layout, self.size = layout, used + SPARE
        self.buffers = [self._empty(buffer) for buffer in range(len(layout.shapes))]

    def _empty(self, buffer: int) -> torch.Tensor:
        plane, count = self.layout.shapes[buffer], self.layout.counts[buffer]
        shape = (count, plane.heads, self.size, plane.width)
        return torch.empty(shape, dtype=plane.dtype, device=plane.device)

    def reserve(self, size: int, used: int) -> None:
        """Make room for `size` slots; the first `used` keep what they hold."""
        if size <= self.size:
            return
        old, self.size = self.buffers, max(size, 2 * self.size)
        self.buffers = [self._empty(buffer) for buffer in range(len(old))]
        self._take(old, used)

    @torch.inference_mode()
    def copy(self, used: int) -> "Slots":
        """The first `used` slots, in buffers of their own."""
        new = Slots(self.layout, used)
        new._take(self.buffers, used)
        return new

    def _take(self, others: Sequence[torch.Tensor], used: int) -> None:
        for mine, other in zip(self.buffers, others, strict=True):
            mine[:, :, :used] = other[:, :, :used]

    # ----------------------------------------------------------------------------------------- where
    def runs(self, stop: int) -> IntArray:
        """First slot and number of slots of each stretch that the first `stop` places take, [runs, 2]."""
        return np.array([[0, stop]])

    def places(self, places: Sequence[int] | range) -> IntArray:
        """Slots of these places of the text, [places]."""
        return np.asarray(places, np.int64)

    def where(self, places: range) -> slice | torch.Tensor:
        """The same as an index into buffers, for places one after the other."""
        slots = self.places(places)
        if np.all(np.diff(slots) == 1):
            first = int(slots[0]) if len(slots) else 0
            return slice(first, first + len(slots))
        return torch.from_numpy(slots).to(self.buffers[0].device)

    @torch.inference_mode()
    def move(self, places: Sequence[int], start: int) -> None:
        """Copy these places to `start`, `start` + 1, ...; reads before it writes."""
        source, target = self.places(places), self.where(range(start, start + len(places)))
        for buffer in self.buffers:
            if buffer.device.type == "cpu":  # torch would wake its threads, which spin on into the next pass
                array = buffer.view(torch.uint8).numpy()
                array[:, :, target] = array.take(source, 2)
            else:
                buffer[:, :, target] = buffer.index_select(2, torch.from_numpy(source).to(buffer.device))

    @torch.inference_mode()
    def take(self, other: "Slots", start: int, stop: int, place: int) -> None:
        """Copy places from `start` to `stop` of another session to `place`, `place` + 1, ..."""
        source, target = other.where(range(start, stop)), self.where(range(place, place + stop - start))
        for mine, theirs in zip(self.buffers, other.buffers, strict=True):
            mine[:, :, target] = theirs[:, :, source]

    # ----------------------------------------------------------------------------- what sessions tell
    keeps = False  # True where the states of committed tokens are kept for others

    def commit(self, tokens: Sequence[int], length: int, states: Mapping[int, torch.Tensor]) -> None:
        """Note tokens that end the text at `length`, and their states [tokens, width]; here nobody asks for them."""

    def cut(self, length: int) -> None:
        """Give back what lies behind the first `length` places, where others can have it."""

    def release(self) -> None:
        """Give back everything, where others can have it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where one session's rows of a pass are written."""

    slots: Slots
    start: int
    rows: int
