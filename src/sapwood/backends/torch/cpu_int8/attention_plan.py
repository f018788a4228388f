"""Attention of a pass that runs layer by layer: groups of rows, their keys and their buffers.

Rows of one session are handled in groups, so that products with all keys stay small. Few rows are
multiplied by compiled code, more by torch.bmm; sums are exact, so both give the same bits.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8 import attention
from sapwood.backends.torch.cpu_int8.runner import Floats, visible_keys
from sapwood.backends.torch.kv_slots import RowSpan
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.network import MaskBlock, PassInput

TOGETHER = 64  # rows whose products with all keys are held at once
# rows times keys up to which compiled code is faster than torch.bmm; for one row it always is
FEW = 512


def pair(*shape: int) -> tuple[Tensor, Floats]:
    """A tensor, and the same memory as a NumPy array for compiled code."""
    tensor = torch.empty(shape)
    return tensor, tensor.numpy()


def floats(tensor: Tensor) -> Floats:
    """A float32 copy for compiled code."""
    found: Floats = tensor.detach().float().contiguous().numpy().copy()
    return found


class AttentionRows:
    """A group of rows of one session, for all layers of a pass."""

    def __init__(
        self,
        net: LlamaModel,
        block: MaskBlock,
        span: RowSpan,
        first: int,
        start: int,
        windows: set[int],
    ) -> None:
        stop = min(start + TOGETHER, span.rows)
        rows = stop - start
        group = net.heads // net.kv_heads
        self.rows = slice(first + start, first + stop)  # indices among the rows of the pass
        self.slots = span.slots.places(range(span.start + start, span.start + stop))
        self.length = block.length
        nodes = block.since + stop  # keys of later nodes are not written yet
        self.keys = block.length + nodes
        self.sights = {
            window: visible_keys(block, window, start, stop, nodes) for window in windows
        }
        self.planes, self.sizes = span.slots.buffers
        self.plane_array, self.size_array = self.planes.numpy(), self.sizes.numpy()
        self.runs = span.slots.runs(self.keys)
        places = rows * group
        kv_heads = net.kv_heads
        self.queries, self.query_array = pair(kv_heads, places, net.head_width)
        self.sums, self.sum_array = pair(kv_heads, places, net.head_width)
        self.products, self.product_array = pair(kv_heads, places, self.keys)
        self.steps, self.results = (np.empty((kv_heads, places), np.float32) for _ in range(2))
        self.bits = np.empty(self.keys, np.int32)
        self.few = rows == 1 or rows * self.keys <= FEW
        self.near: Tensor | None = None  # all planes, if the text's slots are contiguous
        if len(self.runs) == 1:
            self.near = self.planes[:, :, self.runs[0, 0] : self.runs[0, 0] + self.keys]
        elif not self.few:
            self.copy, self.copy_array = pair(kv_heads, self.keys, net.head_width)

    def softmax_weights(self, layer: int, window: int, cap: np.float32, sinks: Floats) -> None:
        """Compute attention: from queries and keys to weighted sums of values."""
        keys = 2 * layer
        values = 2 * layer + 1
        visible = self.sights[window]
        if self.few:
            attention.multiply(
                self.query_array, self.plane_array[keys], self.runs, self.product_array
            )
        else:
            torch.bmm(self.queries, self._side_by_side(keys).transpose(1, 2), out=self.products)
        attention.softmax_weights(
            self.product_array,
            self.steps,
            self.size_array[keys : keys + 2],
            self.runs,
            self.length,
            visible.oldest,
            visible.seen,
            self.results,
            self.bits,
            cap,
            sinks,
        )
        if self.few:
            attention.gather(
                self.product_array, self.plane_array[values], self.runs, self.sum_array
            )
        else:
            torch.bmm(self.products, self._side_by_side(values), out=self.sums)

    def _side_by_side(self, plane: int) -> Tensor:
        """Keys or values of a layer for torch.bmm, [kv heads, keys, width]; copied if scattered."""
        if self.near is not None:
            return self.near[plane].float()
        attention.align(self.plane_array[plane], self.runs, self.copy_array)
        return self.copy


def pieces(net: LlamaModel, rows: PassInput, windows: set[int]) -> Iterator[AttentionRows]:
    """All rows of a pass in groups, session by session."""
    first = 0
    for block, span in zip(rows.blocks, rows.spans, strict=True):
        for start in range(0, span.rows, TOGETHER):
            yield AttentionRows(net, block, span, first, start, windows)
        first += span.rows
