"""Attention under a tree mask, registered as an attention function of transformers.

With a mask, transformers' own function repeats the keys and values of grouped heads;
the CPU kernel takes groups as they are and gives the same numbers, bit for bit, without the copies.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sapwood"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, width]
    key: torch.Tensor,  # [1, key heads, slots, width]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # [1, 1, rows, slots], added to the products
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The same as `sdpa`, without copies of grouped keys on a CPU."""
    if attention_mask is None or query.shape[1] == key.shape[1] or query.device.type != "cpu":
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return out, None
    out = scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def register() -> str:
    """Register the function with transformers; its name."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
