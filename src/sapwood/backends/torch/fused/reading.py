"""A long text, as prompts are, into the seat of a head: three kernels for all its rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.fused.desk import listed
from sapwood.backends.torch.fused.layer import Layer
from sapwood.backends.torch.fused.plain import FACTS, NEW, ROOT_AT, SEAT, TEXT_ROWS
from sapwood.backends.torch.fused.seats import Seat


@torch.inference_mode()
def read(
    ops: Any,  # the steps of a growth
    layer: Layer,
    angles: Tensor,  # of as many positions as the text reaches
    seat: Seat,  # with room for its rows
    features: Tensor,  # [rows, features] of what the target thought
    tokens: Sequence[int],  # the one after each
    first: int,  # position of the first row
) -> None:
    """Leave keys and values of the rows behind those of the text so far."""
    rows, width = features.shape[0], layer.width
    facts = {NEW: rows, ROOT_AT: first + rows, TEXT_ROWS: seat.text, SEAT: seat.index}
    told = torch.tensor(listed(facts, tokens))
    words = told.to(features.device, non_blocking=True)  # the prompt may still be under way there
    states, base = features.new_empty(2, rows, width)
    x, query = features.new_empty(rows, 2 * width), features.new_empty(rows, layer.heads, layer.head_width)
    ops.project(features, layer.fuse, states)
    ops.pair(layer, words[FACTS:], states, x, base)
    ops.project_heads(layer, x, words[:FACTS], angles, seat.pool.keys, seat.pool.values, query, 0, 0)
    seat.text += rows
