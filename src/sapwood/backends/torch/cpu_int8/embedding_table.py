"""An embedding in 8-bit blocks, for drafters: rows become float32 when they are read."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8.pointwise import compiled, inlined

GROUP = 32  # weights with one scale
BYTES = GROUP + 2  # of a block: a float16 scale and signed integers, as in GGUF's Q8_0
# float32 of each float16, by its bits: compiled code has no float16
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


class EmbeddingTable:
    """Blocks [vocab, groups, bytes], in memory or in a mapped file, with the look of a tensor."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, blocks: Any) -> None:
        self.blocks = read_only(blocks)
        self.shape = (len(blocks), blocks.shape[1] * GROUP)

    def __getitem__(self, tokens: Tensor) -> Tensor:
        """Rows of tokens, [tokens, width]."""
        out = np.empty((len(tokens), self.shape[1]), np.float32)
        read_rows(self.blocks, HALVES, tokens.numpy(), out)
        return torch.from_numpy(out)

    def new_empty(self, *shape: int) -> Tensor:
        """A tensor of this dtype."""
        return torch.empty(*shape)

    def new_zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros, of this dtype unless another is given."""
        return torch.zeros(*shape, dtype=dtype)


def read_only(blocks: Any) -> Any:
    """A view that cannot be written to: compiled code has one form for files and for memory."""
    view = blocks.view()
    view.flags.writeable = False
    return view


def parts_of(embedding: "Tensor | EmbeddingTable") -> tuple[Any, Any]:
    """Floats [vocab, width] and blocks of an embedding, one of them with no rows."""
    if isinstance(embedding, EmbeddingTable):
        return np.empty((0, embedding.shape[1]), np.float32), embedding.blocks
    return embedding.detach().numpy(), read_only(np.empty((0, 1, BYTES), np.uint8))


@inlined
def read_row(blocks: Any, halves: Any, token: int, out: Any) -> None:
    """Write the row of a token as float32, [width]."""
    for group in range(blocks.shape[1]):
        low, high = np.int64(blocks[token, group, 0]), np.int64(blocks[token, group, 1])
        scale = halves[low | high << 8]
        for i in range(GROUP):
            out[group * GROUP + i] = np.int8(blocks[token, group, 2 + i]) * scale


@compiled
def read_rows(blocks: Any, halves: Any, tokens: Any, out: Any) -> None:
    """Write the rows of tokens, [tokens, width]."""
    for r in range(tokens.shape[0]):
        read_row(blocks, halves, tokens[r], out[r])
