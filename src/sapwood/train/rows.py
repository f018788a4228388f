"""Keys, values, masks and attention of a batch of rows that are decoded side by side.

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

from sapwood.backends.torch.attention import NAME as TREE_NAME
from sapwood.backends.torch.cache import Layout
from sapwood.backends.torch.mask import WHOLE

NAME = "sapwood-batch"

Mask = torch.Tensor | None
Masks = Mask | dict[str, Mask]  # models with several kinds of layers take one mask for each kind


# -------------------------------------------------------------------------------- keys and values
class Arena:
    """Memory for so many tokens' keys and values, taken once; a batch of any shape is a view of its front."""

    def __init__(self, layout: Layout, tokens: int) -> None:
        self.layout, self.tokens = layout, tokens
        # zeros, since a hidden slot still enters the products, with weight 0: it must hold a number
        self.flat = [
            torch.zeros(tokens * count * plane.heads * plane.width, dtype=plane.dtype, device=plane.device)
            for plane, count in zip(layout.shapes, layout.counts, strict=True)
        ]

    def view(self, rows: int, slots: int) -> list[torch.Tensor]:
        """Buffers of a batch, [planes, rows, heads, slots, width] each."""
        shapes = [
            (count, rows, plane.heads, slots, plane.width)
            for plane, count in zip(self.layout.shapes, self.layout.counts, strict=True)
        ]
        return [flat[: torch.Size(shape).numel()].view(shape) for flat, shape in zip(self.flat, shapes, strict=True)]

    def shrink(self, rows: int, slots: int, keep: torch.Tensor) -> None:
        """Move the rows `keep` of a batch to where a smaller batch of `len(keep)` rows has them."""
        for old, new in zip(self.view(rows, slots), self.view(len(keep), slots), strict=True):
            for plane in range(len(old)):  # in this order no plane is overwritten before it was read
                new[plane] = old[plane].index_select(0, keep)


def token_bytes(layout: Layout) -> int:
    """Bytes of one token's keys and values in all layers."""
    return sum(
        count * plane.heads * plane.width * plane.dtype.itemsize
        for plane, count in zip(layout.shapes, layout.counts, strict=True)
    )


class RowsCache(Cache):
    """What a model sees as its cache: a piece of the prompts, or one more token of every row."""

    def __init__(self, layout: Layout, buffers: list[torch.Tensor]) -> None:
        super().__init__(layers=[])
        self.layout, self.buffers = layout, buffers
        self.rows: slice | None = None  # rows whose prompts are being read; None while decoding
        self.at: Any = None  # [rows, 1, 1, 1] slot of each row's new token
        self.keys = 0  # slots that attention reads

    def read(self, rows: slice) -> None:
        """The next pass reads the prompts of these rows."""
        self.rows = rows

    def extend(self, places: torch.Tensor, keys: int) -> None:
        """The next pass adds one token to every row at its place, and reads the first `keys` slots."""
        self.rows, self.at, self.keys = None, places[:, None, None, None], keys

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this layer's states and return what the pass may see."""
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
        """Positions are always given, so nobody needs to count."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Masks are always given, or none is needed."""
        return query_length, 0


# ----------------------------------------------------------------------------------------- masks
def hide(places: torch.Tensor, keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """What queries at these places, [rows, queries], may not see: [rows, 1, queries, keys], added to the products."""
    slots, places = torch.arange(keys, device=places.device), places[:, None, :, None]
    hidden = slots > places
    if window != WHOLE:
        hidden = hidden | (slots <= places - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=places.device).masked_fill(hidden, torch.finfo(dtype).min)


def masks_of(windows: Mapping[str, int], places: torch.Tensor, keys: int, dtype: torch.dtype, causal: bool) -> Masks:
    """A mask for each kind of layer; `causal` leaves out those that only say what attention does by itself."""
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
    """Attention of a batch; while decoding, the heads that share keys become queries of one head, without copies."""
    rows, heads, queries, _ = query.shape
    if attention_mask is None or queries > 1:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return out, None
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1], query.shape[3])
    out = scaled_dot_product_attention(folded, key, value, attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, value.shape[3]), None


@contextmanager
def batch_attention(model: Any) -> Iterator[bool]:
    """Let the model attend in batches meanwhile; False where its own attention has to do."""
    before = model.config.get_text_config()._attn_implementation
    if before != TREE_NAME:  # a model whose attention is more than products and a mask
        yield False
        return
    AttentionInterface.register(NAME, attend)  # with no mask of its own: none means causal
    model.set_attn_implementation(NAME)
    try:
        yield True
    finally:
        model.set_attn_implementation(before)
