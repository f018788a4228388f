"""Additive attention masks of trees, for transformers.

A row sees the committed keys of its own session, its ancestors and itself; under a sliding window
only those whose position is less than `window` before its own.
"""

from collections.abc import Sequence

import numpy as np
import torch

from sapwood.backends.torch.network import MaskBlock, visible_nodes

LOWEST = float(np.finfo(np.float32).min)  # low enough for wider formats too


def build(
    blocks: Sequence[MaskBlock], window: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """The mask of one pass, [1, 1, rows, slots]; None when every row sees every key."""
    if (
        len(blocks) == 1
        and blocks[0].rows == 1 == len(blocks[0].parents)
        and not blocks[0].windowed(window)
    ):
        return None
    hidden = torch.finfo(dtype).min
    shape = sum(block.rows for block in blocks), sum(block.slots for block in blocks)
    mask = torch.full(shape, hidden, dtype=dtype, device=device)
    row = slot = 0
    for block in blocks:
        own = mask[row : row + block.rows, slot : slot + block.slots]
        fill(own, block, window, hidden)
        row = row + block.rows
        slot = slot + block.slots
    return mask[None, None]


def fill(own: torch.Tensor, block: MaskBlock, window: int, hidden: float) -> None:
    """Write one session's part of the mask, [rows, slots]."""
    own[:, : block.length] = 0
    low = np.float32(max(hidden, LOWEST))
    seen = np.where(visible_nodes(block, window), 0, low).astype(np.float32)
    own[:, block.length :] = torch.from_numpy(seen).to(own.device, own.dtype)
    if block.windowed(window):
        # oldest visible position of each row
        first = block.length + block.depths[block.since :] - window + 1
        oldest = torch.from_numpy(first).to(own.device)
        keys = torch.arange(block.length, device=own.device)
        own[:, : block.length].masked_fill_(keys < oldest[:, None], hidden)
