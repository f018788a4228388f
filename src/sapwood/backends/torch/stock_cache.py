"""The slots of sessions as the cache of a transformers model, and a cache that learns what a model keeps."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

from sapwood.backends.torch.cache import Layout, Span


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
