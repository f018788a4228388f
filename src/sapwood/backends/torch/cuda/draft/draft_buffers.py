"""Static buffers of a draft on the device, its arguments from the host, and its timer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.eagle_layer import CELLS, EagleWeights
from sapwood.backends.torch.cuda.draft.reference import SCALARS
from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers
from sapwood.core.array_types import FloatArray, IntArray

MAX_NEW_ROWS = 16  # most rows of new text in a draft; longer text is prefilled before it


class DraftBuffers:
    """Static buffers of a draft, for at most `rows` rows at once, of all its requests together."""

    def __init__(self, layer: EagleWeights, rows: int, opened: int, requests: int = 1) -> None:
        like = layer.embedding
        width = layer.width
        heads = layer.heads
        self.states = like.new_empty(rows, width)
        self.x = like.new_empty(rows, 2 * width)
        self.base = like.new_empty(rows, width)
        self.middle = like.new_empty(rows, width)  # residual stream between attention and MLP
        # of `middle` and of outputs
        self.norm_buffers = [NormBuffers.make(like, rows, width) for _ in range(2)]
        self.query = like.new_empty(rows, heads, layer.head_width)
        self.attention_out = like.new_empty(rows, heads * layer.head_width)
        self.gated = like.new_empty(rows, layer.inner)
        # double buffer of two levels: one is read while the other is written
        self.outputs = like.new_empty(2, rows, width)
        self.logits = like.new_empty(rows, len(layer.vocabulary))
        self.sees = torch.zeros(2, rows, opened, dtype=torch.int8, device=like.device)
        self.root_base = like.new_empty(requests, width)
        self.root_query = like.new_empty(requests, heads, layer.head_width)


class DraftArgs:
    """Arguments of a draft: scalars, tokens of the new text, acceptance table; one transfer."""

    def __init__(self, device: torch.device) -> None:
        size = SCALARS + MAX_NEW_ROWS + 2 * CELLS
        self.words = torch.zeros(size, dtype=torch.int64, device=device)
        self.host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.host_array: IntArray = self.host.numpy()
        self.host_table = (
            self.host_array[SCALARS + MAX_NEW_ROWS :].view(np.float64).reshape(CELLS, 2)
        )
        self.host_table[:] = 0.0, 1.0
        self.raw = True  # the table leaves draft probabilities as they are
        cuda: Any = torch.cuda  # parts of it have no types
        # the device has read the arguments that were written last
        self.read: Any = cuda.Event() if device.type == "cuda" else None
        self.scalars = self.words[:SCALARS]
        self.tokens = self.words[SCALARS : SCALARS + MAX_NEW_ROWS]
        self.table = self.words[SCALARS + MAX_NEW_ROWS :].view(torch.float64).view(CELLS, 2)

    def write(self, scalars: list[int], lines: FloatArray | None) -> None:
        """Write scalars and tokens of the next draft, once the last one has read its own."""
        if self.read is not None:
            self.read.synchronize()
        self.host_array[: len(scalars)] = scalars
        self.correct(lines)

    def record_sent(self) -> None:
        """Record that the draft which reads them was launched."""
        if self.read is not None:
            self.read.record()

    def correct(self, lines: FloatArray | None) -> None:
        """Set the acceptance table; None takes draft probabilities as they are."""
        if lines is not None:
            self.host_table[:] = lines
        elif not self.raw:
            self.host_table[:] = 0.0, 1.0
        self.raw = lines is None

    def send(self) -> None:
        """Start the transfer, which may be a part of a captured draft."""
        self.words.copy_(self.host, non_blocking=True)


def listed(scalars: Mapping[int, int], tokens: Sequence[int]) -> list[int]:
    """Scalars in the order of their indices, then the tokens."""
    return [scalars.get(place, 0) for place in range(SCALARS)] + list(tokens)


def angles_of(layer: EagleWeights, positions: int) -> Tensor:
    """Cosines and sines of the rotation by position, [positions, head width] float32."""
    places = torch.arange(positions, device=layer.rates.device)[:, None].float() * layer.rates
    return torch.cat((places.cos(), places.sin()), -1)


def kernels(device: torch.device) -> Any:
    """The module whose functions run the steps of a draft on this device."""
    if device.type != "cuda":
        return reference
    from sapwood.backends.torch.cuda.draft import draft_kernels

    return draft_kernels


class DeviceTimer:
    """Seconds of a draft on a GPU, read once the device has finished it; 0 on a CPU."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self.marks = (
            [cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        )

    def start(self) -> None:
        """Record the start of the draft."""
        if self.marks:
            self.marks[0].record()

    def stop(self) -> None:
        """Record its end."""
        if self.marks:
            self.marks[1].record()

    def seconds(self) -> float:
        """Seconds between start and end."""
        return self.marks[0].elapsed_time(self.marks[1]) / 1000 if self.marks else 0.0
