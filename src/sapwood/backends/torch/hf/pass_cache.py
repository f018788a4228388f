"""Transformers caches over the slots of sessions, and a probe of a model's KV layout."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

from sapwood.backends.torch.kv_slots import KvLayout, RowSpan


class PassCache(Cache):
    """The cache of one pass: the rows of each session go to its own slots."""

    def __init__(self, layout: KvLayout, spans: Sequence[RowSpan]) -> None:
        super().__init__(layers=[])
        self.layout = layout
        self.spans = spans
        self.seen = sum(span.start for span in spans)
        self.writes = [
            span.slots.where(range(span.start, span.start + span.rows)) for span in spans
        ]
        self.reads = [
            [
                slice(first, first + count)
                for first, count in span.slots.runs(span.start + span.rows).tolist()
            ]
            for span in spans
        ]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this layer's rows and return every key and value the pass may see."""
        return (
            self._write(key_states, self.layout.keys[layer_idx]),
            self._write(value_states, self.layout.values[layer_idx]),
        )

    def _write(self, states: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
        buffer, index = place
        rows = 0
        found = []
        for span, writes, reads in zip(self.spans, self.writes, self.reads, strict=True):
            plane = span.slots.buffers[buffer][index]
            plane[:, writes] = states[0, :, rows : rows + span.rows]
            found += [plane[:, run] for run in reads]
            rows += span.rows
        return (found[0] if len(found) == 1 else torch.cat(found, dim=1))[None]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys before this pass."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Number of keys the pass sees, and the first of them."""
        return self.seen + query_length, 0


class ProbeCache(Cache):
    """Stores nothing; records the KV layout in a pass over one token."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layout = KvLayout()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Record the shapes of this layer's keys and values."""
        self.layout.keys[layer_idx] = self.layout.place(key_states)
        self.layout.values[layer_idx] = self.layout.place(value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys of the pass alone."""
        return query_length, 0
