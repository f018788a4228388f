"""Matrices of a GGUF file in the blocks of the CPU's products.

Q4_0, Q4_1, Q5_0 and Q8_0 keep their integers and scales. Q4_K keeps its integers; the products of
its two levels of scales are rounded to float16, an error of a thousandth of a quantisation step.
Q5_1, Q5_K, Q6_K and floats are rounded to 8 bits with a scale for 32 weights.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.block_gemm import BlockStrip
from sapwood.backends.torch.cpu_int8.block_quant import to_eight
from sapwood.backends.torch.cpu_int8.block_tile import GROUP, MIN4, SIGNED4, SIGNED8
from sapwood.backends.torch.cpu_int8.embedding_table import HALVES, read_only, read_rows
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK
from sapwood.common.gguf_header import BLOCKS, GgufHeader, TensorInfo
from sapwood.core.array_types import FloatArray

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
Q4_K, Q5_K, Q6_K, BF16 = 12, 13, 14, 30
FLOATS = (F32, F16, BF16)
NAMES = {Q4_0: "Q4_0", Q4_1: "Q4_1", Q5_0: "Q5_0", Q5_1: "Q5_1", Q8_0: "Q8_0"}
NAMES |= {Q4_K: "Q4_K", Q5_K: "Q5_K", Q6_K: "Q6_K"}
FORMS = {Q4_0: SIGNED4, Q4_1: MIN4, Q4_K: MIN4}  # of the other kinds it is SIGNED8
PERMUTED = "llama"  # architecture whose rotated pairs lie side by side
STRIP = 4 << 20  # weights that are read at once
KEPT = 1024  # rows of an embedding that are kept
SIGN = np.uint8(128)  # turns a signed byte into an unsigned one around 128

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


# ------------------------------------------------------------------------------------------- kinds
def half(blocks: Bytes, start: int) -> Any:
    """A float16 of each block, which begins at this byte, [outputs, blocks]."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]


def from_q4_0(blocks: Bytes) -> BlockStrip:
    """Blocks of 32: scale, integers around 8."""
    return BlockStrip(SIGNED4, blocks[..., 2:], half(blocks, 0), None)


def from_q4_1(blocks: Bytes) -> BlockStrip:
    """Blocks of 32: scale, minimum, integers."""
    return BlockStrip(MIN4, blocks[..., 4:], half(blocks, 0), half(blocks, 2))


def from_q5_0(blocks: Bytes) -> BlockStrip:
    """Blocks of 32: scale, the highest bits of all integers, the others; integers around 16."""
    highest = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little") << 4
    others = blocks[..., 6:]
    integers = np.concatenate((others & 15, others >> 4), -1) | highest
    return BlockStrip(SIGNED8, integers + (SIGN - np.uint8(16)), half(blocks, 0), None)


def from_q8_0(blocks: Bytes) -> BlockStrip:
    """Blocks of 32: scale, signed integers."""
    return BlockStrip(SIGNED8, blocks[..., 2:] ^ SIGN, half(blocks, 0), None)


def from_q4_k(blocks: Bytes) -> BlockStrip:
    """Blocks of 256: two scales, twelve bytes with eight 6-bit factors for each, integers."""
    outputs = len(blocks)
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    factors = np.concatenate((first & 63, third & 15 | first >> 6 << 4), -1)
    shifts = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), -1)
    scales, least = (
        (half(blocks, start).astype(np.float32)[..., None] * part).astype(np.float16)
        for start, part in ((0, factors), (2, shifts))
    )
    # 32 bytes hold a group in their low and the next group in their high halves
    fours = blocks[..., 16:].reshape(outputs, -1, GROUP)
    low, high = fours & 15, fours >> 4
    middle = GROUP // 2
    groups = np.stack(
        [part[..., :middle] | part[..., middle:] << 4 for part in (low, high)], axis=2
    )
    return BlockStrip(
        MIN4,
        groups.reshape(outputs, -1, middle),
        scales.reshape(outputs, -1),
        -least.reshape(outputs, -1),
    )


EXACT: dict[int, Callable[[Bytes], BlockStrip]] = {
    Q4_0: from_q4_0,
    Q4_1: from_q4_1,
    Q5_0: from_q5_0,
    Q8_0: from_q8_0,
    Q4_K: from_q4_k,
}


def floats_of(rows: Bytes, kind: int) -> FloatArray:
    """Rows of bytes as float32, [rows, columns]."""
    from gguf import GGMLQuantizationType, dequantize

    if kind == F32:
        return np.ascontiguousarray(rows).view(np.float32)
    found: Any = dequantize(np.ascontiguousarray(rows), GGMLQuantizationType(kind))
    return np.asarray(found, np.float32)


# ------------------------------------------------------------------------------------------ tensors
class GgufMatrix:
    """A matrix of a GGUF file, read some rows at a time."""

    def __init__(
        self, path: Path, header: GgufHeader, tensor: TensorInfo, heads: int | None = None
    ) -> None:
        """`heads` is the number of heads whose rotated pairs lie side by side in the file."""
        self.path = path
        self.kind = tensor.kind
        self.inputs, self.outputs = tensor.shape
        self.form = FORMS.get(tensor.kind, SIGNED8)
        self.heads = heads
        self._start = header.data + tensor.offset
        self._length = tensor.size // self.outputs  # bytes of a row
        self._known: dict[int, FloatArray] = {}  # rows of an embedding

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.outputs, self.inputs

    def rows(self, start: int, stop: int) -> Bytes:
        """Bytes of some rows, in the file's order, [rows, bytes]."""
        found = np.fromfile(
            self.path,
            np.uint8,
            (stop - start) * self._length,
            offset=self._start + start * self._length,
        )
        return found.reshape(-1, self._length)

    def strips(self) -> Iterator[BlockStrip]:
        """The rows in the model's order, whole blocks of outputs but for the last."""
        for rows in self._strips():
            if self.kind in EXACT:
                size = BLOCKS[self.kind][1]
                yield EXACT[self.kind](rows.reshape(len(rows), -1, size))
            else:
                yield to_eight(floats_of(rows, self.kind))

    def _strips(self) -> Iterator[Bytes]:
        if self.heads is not None:
            yield self.rows(0, self.outputs)[self._order(self.heads)]
            return
        height = max(1, STRIP // (BLOCK * self.inputs)) * BLOCK
        for start in range(0, self.outputs, height):
            yield self.rows(start, min(start + height, self.outputs))

    def _order(self, heads: int) -> Any:
        """Rows of the file in the model's order: first halves of the pairs before the second."""
        return np.arange(self.outputs).reshape(heads, -1, 2).swapaxes(1, 2).ravel()

    def floats(self) -> FloatArray:
        """The whole matrix, float32 [outputs, inputs]."""
        return np.concatenate([floats_of(rows, self.kind) for rows in self._strips()])

    def __getitem__(self, rows: slice, /) -> Any:
        """Some rows as a float32 tensor, for matrices that are not permuted."""
        import torch

        start, stop, _ = rows.indices(self.outputs)
        return torch.from_numpy(floats_of(self.rows(start, stop), self.kind))

    # ----------------------------------------------------------------------------------- embedding
    @cached_property
    def _mapped(self) -> Bytes:
        size = self.outputs * self._length
        whole = np.memmap(self.path, np.uint8, "r", self._start, (size,))
        return np.asarray(whole).reshape(self.outputs, self._length)

    @cached_property
    def _blocks(self) -> Bytes:
        """The mapped rows in blocks of Q8_0, [outputs, groups, bytes]."""
        blocks: Bytes = read_only(self._mapped.reshape(self.outputs, -1, BLOCKS[Q8_0][1]))
        return blocks

    def take(self, tokens: Any) -> FloatArray:
        """Rows of an embedding, float32 [tokens, inputs]; unread pages take no memory."""
        if self.kind == Q8_0:
            out = np.empty((len(tokens), self.inputs), np.float32)
            read_rows(self._blocks, HALVES, tokens, out)
            return out
        return np.stack([self._row(int(token)) for token in tokens])

    def eight_bit_blocks(self) -> Bytes:
        """Rows in blocks of Q8_0, [outputs, groups, bytes]: mapped, or rounded into memory."""
        size = BLOCKS[Q8_0][1]
        if self.kind == Q8_0:
            return self._mapped.reshape(self.outputs, -1, size)
        from gguf import GGMLQuantizationType, quantize

        strips = (
            quantize(floats_of(rows, self.kind), GGMLQuantizationType(Q8_0))
            for rows in self._strips()
        )
        return np.concatenate([strip.reshape(len(strip), -1, size) for strip in strips])

    def _row(self, token: int) -> FloatArray:
        """One row, cached: a generic reader takes as long as a layer of a pass."""
        if token not in self._known:
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[token] = floats_of(self._mapped[token : token + 1], self.kind)[0]
        return self._known[token]
