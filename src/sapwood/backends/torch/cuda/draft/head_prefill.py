"""Prefill of a head's KV cache with a long text, such as a prompt: three kernels for all rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.draft_buffers import listed
from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvSequence
from sapwood.backends.torch.cuda.draft.reference import NEW, ROOT_AT, SCALARS, SEQUENCE, TEXT_ROWS


@torch.inference_mode()
def read(
    ops: Any,  # the module with the steps of a draft
    layer: EagleWeights,
    angles: Tensor,  # [positions, d] for at least the positions of the text
    sequence: HeadKvSequence,  # with room for its rows
    features: Tensor,  # [rows, features] hidden states of the target
    tokens: Sequence[int],  # the token after each row
    first: int,  # position of the first row
) -> None:
    """Append keys and values of the rows to those of the text so far."""
    rows = features.shape[0]
    width = layer.width
    scalars = {NEW: rows, ROOT_AT: first + rows, TEXT_ROWS: sequence.text, SEQUENCE: sequence.index}
    # pinned: the transfer must not wait for passes that are under way
    host = torch.tensor(listed(scalars, tokens), pin_memory=features.is_cuda)
    words = host.to(features.device, non_blocking=True)  # the prompt may still be under way there
    states, base = features.new_empty(2, rows, width)
    x = features.new_empty(rows, 2 * width)
    query = features.new_empty(rows, layer.heads, layer.head_width)
    ops.project(features, layer.fuse, states)
    ops.pair(layer, words[SCALARS:], states, x, base)
    ops.project_heads(
        layer, x, words[:SCALARS], angles, sequence.pool.keys, sequence.pool.values, query, 0, 0
    )
    sequence.text += rows
