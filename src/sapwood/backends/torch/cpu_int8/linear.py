"""Linear layers with int8 weights, by our kernels or, to compare them with, by FBGEMM in torch.

A row is scaled to [-1, 1] by its own largest magnitude, so one fixed grid of 255 steps serves all
rows and a row's result does not depend on its neighbours: outputs are sums of integers, exact in
any order, and the same bits in both forms.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8 import int8_gemm, pointwise
from sapwood.backends.torch.cpu_int8.cpu_target import HAS_AVX2
from sapwood.backends.torch.cpu_int8.int8_gemm import STEP, ZERO, StreamedMatrix
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK
from sapwood.backends.torch.cpu_int8.pass_args import SPLIT, WHOLE
from sapwood.backends.torch.hf.submodel import coarse

BITS = 8
LEVELS = 127  # largest integer of a weight
ENGINE = "fbgemm"
STRIP = 1 << 20  # weights that are quantised at once


class MatrixSource(Protocol):
    """A matrix [outputs, inputs]: a tensor, or an object that reads its rows on demand."""

    @property
    def shape(self) -> Sequence[int]:
        """Outputs and inputs."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some of the rows."""


class Int8Linear:
    """A linear layer with an int8 matrix [outputs, inputs]."""

    fine = False  # True if inputs are split into a rounded row and a remainder
    form = WHOLE  # of the inputs

    def __init__(self, weight: MatrixSource) -> None:
        self.outputs, self.inputs = weight.shape
        self.packed = pack(weight)
        self.apply = kernel()

    @classmethod
    def of(cls, packed: Any, outputs: int, inputs: int) -> Self:
        """The layer of a matrix that is quantised and packed already."""
        made = cls.__new__(cls)
        made.outputs = outputs
        made.inputs = inputs
        made.packed = packed
        made.apply = kernel()
        return made

    def __call__(self, rows: Tensor) -> Tensor:
        """Outputs of rows scaled to [-1, 1], float32 [rows, outputs]."""
        if isinstance(self.packed, StreamedMatrix):
            return torch.from_numpy(int8_gemm.products(self.packed, rows.numpy(), self.fine))
        return self._multiply(rows)

    def _multiply(self, rows: Tensor) -> Tensor:
        """Outputs by FBGEMM."""
        out: Tensor = self.apply(rows, STEP, ZERO, self.packed)
        return out

    def rounded(self, bits: int) -> "Int8Linear":
        """The layer without split inputs; below eight bits, with coarser weights too."""
        if bits < BITS:
            return Int8Linear(coarse(unpack(self.packed), bits))
        return Int8Linear.of(self.packed, self.outputs, self.inputs)


class SplitLinear(Int8Linear):
    """A linear layer whose inputs have 15 bits: a rounded row and a remainder.

    Twice the rows take little longer, since reading weights limits a pass.
    """

    fine = True
    form = SPLIT

    def _multiply(self, rows: Tensor) -> Tensor:
        count, inputs = rows.shape
        parts = torch.empty(2 * count, inputs)
        pointwise.part(rows.numpy(), parts.numpy())
        out = super()._multiply(parts)
        pointwise.join(out.numpy())
        return out[:count]


def pack(weight: MatrixSource) -> Any:
    """Quantise weights to int8, with one scale for each output."""
    if int8_gemm.available():
        return streamed(weight)
    torch.backends.quantized.engine = ENGINE
    return torch.ops.quantized.linear_prepack(as_qint8(weight[:]), None)


def streamed(weight: MatrixSource) -> StreamedMatrix:
    """Quantise a strip at a time, without a float32 copy of the whole matrix."""
    outputs, inputs = weight.shape
    made = StreamedMatrix(outputs, inputs)
    height = max(1, STRIP // (BLOCK * inputs)) * BLOCK
    for start in range(0, outputs, height):
        strip, scales = rounded(weight[start : start + height])
        made.put(start, strip, scales)
    return made


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as int8 [outputs, inputs], and float32 scales [outputs].

    The integers are those of `as_qint8`, in a third of its time.
    """
    exact = weight.detach().float()
    scales = scales_of(exact)
    return torch.mul(exact, (1 / scales)[:, None]).round_().to(torch.int8), scales


def scales_of(exact: Tensor) -> Tensor:
    """The step of each output's weights, float32 [outputs]."""
    # not abs(), which would copy the weights
    largest = torch.maximum(exact.amax(1), -exact.amin(1))
    return (largest / LEVELS).clamp(min=torch.finfo(torch.float32).tiny)


def as_qint8(weight: Tensor) -> Tensor:
    """Weights as a quantised tensor [outputs, inputs], for FBGEMM."""
    exact = weight.detach().float()
    scales = scales_of(exact).double()
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        # quantised tensors are deprecated; `available` checks that they are there
        warnings.simplefilter("ignore")
        return torch.quantize_per_channel(exact, scales, zeros, 0, torch.qint8)


def unpack(packed: Any) -> Tensor:
    """The weights of a quantised matrix, float32 [outputs, inputs]."""
    if isinstance(packed, StreamedMatrix):
        return packed.exact()
    weight: Tensor = torch.ops.quantized.linear_unpack(packed)[0].dequantize()
    return weight


def kernel() -> Any:
    """FBGEMM's int8 linear with a fixed input grid; None if this torch has none."""
    packet = getattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32", None)
    # `_op` skips the checks of the wrapper: there are thousands of calls a second
    return None if packet is None else packet.default._op


def available() -> bool:
    """True if int8 layers can be run here."""
    return int8_gemm.available() or (
        HAS_AVX2 and ENGINE in torch.backends.quantized.supported_engines and kernel() is not None
    )
