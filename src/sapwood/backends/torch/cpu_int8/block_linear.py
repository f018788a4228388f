"""Linear layers with weights in 4-bit or 8-bit blocks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8.block_gemm import BlockMatrix, BlockStrip, group_products
from sapwood.backends.torch.cpu_int8.block_quant import from_mxfp4, to_eight, to_four
from sapwood.backends.torch.cpu_int8.block_tile import GROUP, MIN4, MXFP4, SIGNED8
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK
from sapwood.backends.torch.cpu_int8.linear import BITS, STRIP, Int8Linear, MatrixSource
from sapwood.backends.torch.cpu_int8.pass_args import GROUPED
from sapwood.backends.torch.hf.submodel import coarse
from sapwood.backends.torch.llama import LayerExtras, LlamaLayer
from sapwood.core.array_types import FloatArray


class BlockSource(Protocol):
    """A matrix that is read in blocks."""

    outputs: int
    inputs: int
    form: int  # of block_tile

    def strips(self) -> Iterable[BlockStrip]:
        """The rows in order, whole blocks of outputs but for the last."""


class BlockLinear:
    """A linear layer whose matrix is some sources, one under the other."""

    form = GROUPED  # of the inputs

    def __init__(self, sources: Sequence[BlockSource]) -> None:
        self.inputs = sources[0].inputs
        self.packed = BlockMatrix(
            self.inputs, [(source.form, source.outputs) for source in sources]
        )
        self.outputs = self.packed.outputs
        start = 0
        for source in sources:
            for strip in source.strips():
                self.packed.put(start, strip)
                start += strip.outputs

    def __call__(self, rows: Tensor) -> Tensor:
        """Outputs of rows, float32 [rows, outputs]."""
        return torch.from_numpy(group_products(self.packed, rows.numpy()))

    def rounded(self, bits: int) -> "BlockLinear | Int8Linear":
        """The layer with coarser weights, below eight bits."""
        if bits < BITS:
            return Int8Linear(coarse(torch.from_numpy(self.packed.exact()), bits))
        return self


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One decoder layer whose matrices are quantised already; otherwise as `LlamaLayer`."""

    norm: Tensor
    qkv: BlockLinear | Int8Linear
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: BlockLinear | Int8Linear
    mlp_norm: Tensor
    gate_up: BlockLinear | Int8Linear
    down: BlockLinear | Int8Linear
    window: int
    rotary: int = 0
    extras: LayerExtras | None = None

    @classmethod
    def of(cls, layer: LlamaLayer, qkv: Any, out: Any, gate_up: Any, down: Any) -> "PackedLayer":
        """A layer with its matrices in this form."""
        return cls(
            norm=layer.norm,
            qkv=qkv,
            qkv_bias=layer.qkv_bias,
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            out=out,
            mlp_norm=layer.mlp_norm,
            gate_up=gate_up,
            down=down,
            window=layer.window,
            rotary=layer.rotary,
            extras=layer.extras,
        )


def float_head(weight: MatrixSource) -> BlockLinear:
    """An output head in 8 bits: it is too sensitive for 4."""
    return BlockLinear([FloatBlocks(weight, 8)])


def to_blocks(layer: LlamaLayer) -> PackedLayer:
    """A layer quantised to 4 bits."""
    from sapwood.backends.torch.cpu_int8.experts import each_expert

    parts = [
        each_expert(lambda part: BlockLinear([FloatBlocks(part, 4)]), weight)
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    return PackedLayer.of(layer, *parts)


class Mxfp4Blocks:
    """A matrix in MXFP4 blocks, which stay as they are."""

    form = MXFP4

    def __init__(self, blocks: Tensor, exponents: Tensor) -> None:
        """Of a file: uint8 [outputs, groups, 16] and [outputs, groups]."""
        self.outputs = len(blocks)
        self.inputs = GROUP * blocks.shape[1]
        self._blocks = blocks
        self._exponents = exponents

    def strips(self) -> Iterator[BlockStrip]:
        """The whole matrix."""
        yield from_mxfp4(self._blocks.numpy(), self._exponents.numpy())


class FloatBlocks:
    """A matrix of floats, quantised to blocks while it is read."""

    def __init__(self, weight: MatrixSource, bits: int) -> None:
        self.outputs, self.inputs = weight.shape
        self.form = MIN4 if bits == 4 else SIGNED8
        self._weight = weight
        self._quantize: Callable[[FloatArray], BlockStrip] = to_four if bits == 4 else to_eight

    def strips(self) -> Iterator[BlockStrip]:
        """Strips of some million weights."""
        height = max(1, STRIP // (BLOCK * self.inputs)) * BLOCK
        for start in range(0, self.outputs, height):
            yield self._quantize(self._weight[start : start + height].float().numpy())
