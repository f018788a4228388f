"""From parents to an attention mask.

A row sees the committed keys of its own session, its ancestors and itself; under a sliding window
only those whose position is less than `window` before its own. Masks are additive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood.arrays import BoolArray, IntArray

WHOLE = 0  # window of a layer that sees everything


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a pass that belongs to one session."""

    length: int  # committed keys
    parents: IntArray  # [nodes]
    depths: IntArray  # [nodes]
    since: int = 0  # rows are the nodes from here on
    gap: int = 0  # positions of the text whose keys are left out

    @property
    def rows(self) -> int:
        """Nodes that are run."""
        return len(self.parents) - self.since

    @property
    def positions(self) -> IntArray:
        """Place of each row in its text, [rows]."""
        return self.length + self.gap + self.depths[self.since :]

    @property
    def slots(self) -> int:
        """Keys the rows choose from."""
        return self.length + len(self.parents)

    def windowed(self, window: int) -> bool:
        """True when some key lies outside some row's window."""
        return window != WHOLE and self.length + int(self.depths[self.since :].max()) >= window


def ancestors(block: Block) -> BoolArray:
    """True where the column lies on the row's path, itself included, [rows, nodes]."""
    nodes, seen = len(block.parents), [0]  # the bits of a path are its nodes; the root's parent, -1, has none
    for node, parent in enumerate(block.parents.tolist()):
        seen.append(seen[parent + 1] | 1 << node)
    width = -(-nodes // 8)  # bytes
    packed = b"".join([path.to_bytes(width, "little") for path in seen[block.since + 1 :]])
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(-1, 8 * width)[:, :nodes].view(bool)


def tail(block: Block, window: int) -> BoolArray:
    """Which nodes each row sees, [rows, nodes]."""
    mask = ancestors(block)
    if block.windowed(window):
        mask &= block.depths[block.since :, None] - block.depths[None, :] < window
    return mask


def build(blocks: Sequence[Block], window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """The mask of one pass, [1, 1, rows, slots]; None when every row sees every key."""
    if len(blocks) == 1 and blocks[0].rows == 1 == len(blocks[0].parents) and not blocks[0].windowed(window):
        return None
    hidden = torch.finfo(dtype).min
    shape = sum(block.rows for block in blocks), sum(block.slots for block in blocks)
    mask = torch.full(shape, hidden, dtype=dtype, device=device)
    row = slot = 0
    for block in blocks:
        own = mask[row : row + block.rows, slot : slot + block.slots]
        fill(own, block, window, hidden)
        row, slot = row + block.rows, slot + block.slots
    return mask[None, None]


def fill(own: torch.Tensor, block: Block, window: int, hidden: float) -> None:
    """Write one session's part of the mask, [rows, slots]."""
    own[:, : block.length] = 0
    seen = np.where(tail(block, window), 0, np.float32(hidden)).astype(np.float32)
    own[:, block.length :] = torch.from_numpy(seen).to(own.device, own.dtype)
    if block.windowed(window):
        first = block.length + block.depths[block.since :] - window + 1  # oldest position each row sees
        oldest = torch.from_numpy(first).to(own.device)
        keys = torch.arange(block.length, device=own.device)
        own[:, : block.length].masked_fill_(keys < oldest[:, None], hidden)
