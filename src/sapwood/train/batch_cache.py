"""KV cache, masks and attention of a batch of rows that are decoded together.

Slot i of a row holds its token i, so a slot is a position, and rows of different lengths need no
padding on the left: what a row must not see lies behind its own position.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from sapwood.backends.torch.hf.tree_attention import NAME as TREE_NAME
from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.backends.torch.network import WHOLE

NAME = "sapwood-batch"

Mask = torch.Tensor | None
Masks = Mask | dict[str, Mask]  # models with several kinds of layers take one mask for each kind


# -------------------------------------------------------------------------------- keys and values
class KvArena:
    """Memory for the keys and values of `tokens` tokens; batches of any shape are views of it."""

    def __init__(self, layout: KvLayout, tokens: int) -> None:
        self.layout = layout
        self.tokens = tokens
        # zeros, since a masked slot still enters the products, with weight 0: NaN would spread
        self.flat = [
            torch.zeros(
                tokens * count * plane.heads * plane.width, dtype=plane.dtype, device=plane.device
            )
            for plane, count in zip(layout.shapes, layout.counts, strict=True)
        ]

    def view(self, rows: int, slots: int) -> list[torch.Tensor]:
        """Buffers of a batch, [planes, rows, heads, slots, width] each."""
        shapes = [
            (count, rows, plane.heads, slots, plane.width)
            for plane, count in zip(self.layout.shapes, self.layout.counts, strict=True)
        ]
        return [
            flat[: torch.Size(shape).numel()].view(shape)
            for flat, shape in zip(self.flat, shapes, strict=True)
        ]

    def shrink(self, rows: int, slots: int, keep: torch.Tensor) -> None:
        """Move the rows `keep` of a batch to where a smaller batch of `len(keep)` rows has them."""
        for old, new in zip(self.view(rows, slots), self.view(len(keep), slots), strict=True):
            # in this order no plane is overwritten before it is copied
            for plane in range(len(old)):
                new[plane] = old[plane].index_select(0, keep)


def token_bytes(layout: KvLayout) -> int:
    """Bytes of one token's keys and values in all layers."""
    return sum(
        count * plane.heads * plane.width * plane.dtype.itemsize
        for plane, count in zip(layout.shapes, layout.counts, strict=True)
    )


class BatchCache(Cache):
    """A transformers cache for a pass that prefills prompts, or adds one token to every row."""

    def __init__(self, layout: KvLayout, buffers: list[torch.Tensor]) -> None:
        super().__init__(layers=[])
        self.layout = layout
        self.buffers = buffers
        self.rows: slice | None = None  # rows that are prefilled; None while decoding
        self.at: Any = None  # [rows, 1, 1, 1] slot of each row's new token
        self.keys = 0  # slots that attention sees

    def read(self, rows: slice) -> None:
        """Let the next pass prefill these rows."""
        self.rows = rows

    def extend(self, places: torch.Tensor, keys: int) -> None:
        """Let the next pass add one token to every row, over the first `keys` slots."""
        self.rows = None
        self.at = places[:, None, None, None]
        self.keys = keys

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this layer's states and return those visible to the pass."""
        return (
            self._write(key_states, self.layout.keys[layer_idx]),
            self._write(value_states, self.layout.values[layer_idx]),
        )

    def _write(self, states: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
        plane = self.buffers[place[0]][place[1]]  # [rows, heads, slots, width]
        if self.rows is not None:
            plane[self.rows, :, : states.shape[2]] = states
            return states
        plane.scatter_(2, self.at.expand(states.shape), states)
        return plane[:, :, : self.keys]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """No offset: masks are given, or not needed."""
        return query_length, 0


# ----------------------------------------------------------------------------------------- masks
def hide(places: torch.Tensor, keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [rows, 1, queries, keys] for queries at these places [rows, queries]."""
    slots = torch.arange(keys, device=places.device)
    places = places[:, None, :, None]
    hidden = slots > places
    if window != WHOLE:
        hidden = hidden | (slots <= places - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=places.device).masked_fill(
        hidden, torch.finfo(dtype).min
    )


def masks_of(
    windows: Mapping[str, int], places: torch.Tensor, keys: int, dtype: torch.dtype, causal: bool
) -> Masks:
    """A mask for each kind of layer; with `causal`, None where causal attention needs no mask."""
    made: dict[str, Mask] = {}
    for kind, window in windows.items():
        effective = window if keys > window else WHOLE
        made[kind] = None if causal and effective == WHOLE else hide(places, keys, effective, dtype)
    return made if len(made) > 1 else next(iter(made.values()))


# ------------------------------------------------------------------------------------- attention
def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [rows, heads, queries, width]
    key: torch.Tensor,  # [rows, key heads, slots, width]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # [rows, 1, queries, slots]; None is causal
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a batch; in decoding, heads that share keys become queries of one head."""
    rows, heads, queries, _ = query.shape
    if attention_mask is None or queries > 1:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return out, None
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1], query.shape[3])
    out = scaled_dot_product_attention(folded, key, value, attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, value.shape[3]), None


@contextmanager
def batch_attention(model: Any) -> Iterator[bool]:
    """Switch the model to `attend` in this context; False if its own attention must stay."""
    before = model.config.get_text_config()._attn_implementation
    if before != TREE_NAME:  # a model whose attention is more than products and a mask
        yield False
        return
    AttentionInterface.register(NAME, attend)  # with no mask of its own: None means causal
    model.set_attn_implementation(NAME)
    try:
        yield True
    finally:
        model.set_attn_implementation(before)
