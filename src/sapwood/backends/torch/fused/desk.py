"""What a growth works on: buffers that stay where they are, what the host tells it, and its time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import FloatArray, IntArray
from sapwood.backends.torch.fused import plain
from sapwood.backends.torch.fused.layer import CELLS, Layer
from sapwood.backends.torch.fused.plain import FACTS
from sapwood.backends.torch.fused.stream import Margin

TEXT = 16  # most rows of new text that a growth reads; longer texts are read before


class Desk:
    """Buffers of a growth, for at most so many rows at once."""

    def __init__(self, layer: Layer, rows: int, opened: int) -> None:
        like, width, heads = layer.embedding, layer.width, layer.heads
        self.states = like.new_empty(rows, width)
        self.x = like.new_empty(rows, 2 * width)
        self.base = like.new_empty(rows, width)
        self.middle = like.new_empty(rows, width)
        self.margins = [Margin.make(like, rows, width) for _ in range(2)]  # of the middle and of outputs
        self.query = like.new_empty(rows, heads, layer.head_width)
        self.read = like.new_empty(rows, heads * layer.head_width)
        self.gated = like.new_empty(rows, layer.inner)
        self.outputs = like.new_empty(2, rows, width)  # of two levels in turn: one is read while the other is written
        self.logits = like.new_empty(rows, len(layer.vocabulary))
        self.sees = torch.zeros(2, rows, opened, dtype=torch.int8, device=like.device)
        self.root_base = like.new_empty(1, width)
        self.root_query = like.new_empty(1, heads, layer.head_width)


class Inbox:
    """What the host tells a growth: facts, tokens of the new text, chances; one transfer."""

    def __init__(self, device: torch.device) -> None:
        size = FACTS + TEXT + 2 * CELLS
        self.words = torch.zeros(size, dtype=torch.int64, device=device)
        self.host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.here: IntArray = self.host.numpy()
        self.here_table = self.here[FACTS + TEXT :].view(np.float64).reshape(CELLS, 2)
        self.here_table[:] = 0.0, 1.0
        self.raw = True  # the table changes nothing
        cuda: Any = torch.cuda  # parts of it have no types
        self.read: Any = cuda.Event() if device.type == "cuda" else None  # when the device had what was told last
        self.facts, self.tokens = self.words[:FACTS], self.words[FACTS : FACTS + TEXT]
        self.table = self.words[FACTS + TEXT :].view(torch.float64).view(CELLS, 2)

    def tell(self, facts: list[int], lines: FloatArray | None) -> None:
        """Write what the next growth reads, once the last one has: facts, the new text's tokens; lines as `correct`."""
        if self.read is not None:
            self.read.synchronize()
        self.here[: len(facts)] = facts
        self.correct(lines)

    def mark(self) -> None:
        """What was told is on its way."""
        if self.read is not None:
            self.read.record()

    def correct(self, lines: FloatArray | None) -> None:
        """Value nodes by these lines; None trusts the draft."""
        if lines is not None:
            self.here_table[:] = lines
        elif not self.raw:
            self.here_table[:] = 0.0, 1.0
        self.raw = lines is None

    def send(self) -> None:
        """Start the transfer, which may be a part of a captured growth."""
        self.words.copy_(self.host, non_blocking=True)


def listed(facts: Mapping[int, int], tokens: Sequence[int]) -> list[int]:
    """Facts by their places, and tokens behind them, as a growth reads them."""
    return [facts.get(place, 0) for place in range(FACTS)] + list(tokens)


def angles_of(layer: Layer, positions: int) -> Tensor:
    """Cosines and sines of the rotation by position, [positions, head width] float32."""
    places = torch.arange(positions, device=layer.rates.device)[:, None].float() * layer.rates
    return torch.cat((places.cos(), places.sin()), -1)


def kernels(device: torch.device) -> Any:
    """The module whose functions do the steps of a growth on this device."""
    if device.type != "cuda":
        return plain
    from sapwood.backends.torch.fused import level

    return level


class Stopwatch:
    """Seconds of a growth on the device, read once the device has passed it; nothing where the host waits anyway."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self.marks = [cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []

    def start(self) -> None:
        """Note where the growth begins."""
        if self.marks:
            self.marks[0].record()

    def stop(self) -> None:
        """Note where it ends."""
        if self.marks:
            self.marks[1].record()

    def seconds(self) -> float:
        """Between the two."""
        return self.marks[0].elapsed_time(self.marks[1]) / 1000 if self.marks else 0.0
