"""Keys and values of a session, in slots that a tree can be written to and cut back in.

Slot i below `length` holds the committed token i; node i of the tree in flight is written to slot
length + i. Keeping a path moves its nodes to the front of the tail. All layers of one shape share
one buffer, so that a move is a single gather.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import Cache

from sapwood.arrays import IntArray

SPARE = 256  # slots a new session has beyond its first text


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
        source = torch.from_numpy(self.places(places))
        target = self.where(range(start, start + len(places)))
        for buffer in self.buffers:
            buffer[:, :, target] = buffer.index_select(2, source.to(buffer.device))

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


class PassCache(Cache):
    """What a model sees as its cache during one pass: the rows of each span go to its own slots."""

    def __init__(self, layout: Layout, spans: Sequence[Span]) -> None:
        super().__init__(layers=[])
        self.layout, self.spans = layout, spans
        self.seen = sum(span.start for span in spans)
        self.writes = [span.slots.where(range(span.start, span.start + span.rows)) for span in spans]
        self.reads = [
            [slice(first, first + count) for first, count in span.slots.runs(span.start + span.rows).tolist()]
            for span in spans
        ]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this layer's rows and return every key and value the pass may see."""
        return (
            self._write(key_states, self.layout.keys[layer_idx]),
            self._write(value_states, self.layout.values[layer_idx]),
        )

    def _write(self, states: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
        buffer, index = place
        rows, found = 0, []
        for span, writes, reads in zip(self.spans, self.writes, self.reads, strict=True):
            plane = span.slots.buffers[buffer][index]
            plane[:, writes] = states[0, :, rows : rows + span.rows]
            found += [plane[:, run] for run in reads]
            rows += span.rows
        return (found[0] if len(found) == 1 else torch.cat(found, dim=1))[None]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys that were there before this pass."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Number of keys the pass sees, and the first of them."""
        return self.seen + query_length, 0


class ProbeCache(Cache):
    """Keeps nothing; learns the layout from one pass over one token."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layout = Layout()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note what this layer wants to keep."""
        self.layout.keys[layer_idx] = self.layout.place(key_states)
        self.layout.values[layer_idx] = self.layout.place(value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Nothing was seen before."""
        return query_length, 0
