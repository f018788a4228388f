"""Linear layers with eight-bit weights: streamed where the processor can, else in FBGEMM's form inside torch.

A row comes scaled to [-1, 1] by its own largest magnitude, so one fixed grid of 255 steps serves all
rows and a row's result does not depend on its neighbours: the products are sums of whole numbers,
exact in any order, and the same bits in both forms.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sapwood.backends.torch.packed import kernels, stream
from sapwood.backends.torch.packed.machine import BLOCK
from sapwood.backends.torch.packed.stream import STEP, ZERO, Streamed
from sapwood.backends.torch.parts import coarse

BITS = 8
LEVELS = 127  # whole numbers on each side of zero that a weight may take
ENGINE = "fbgemm"
STRIP = 1 << 20  # weights that are rounded at once


class Matrix(Protocol):
    """Numbers [outputs, inputs]: a tensor, or what reads rows of one when they are asked for."""

    @property
    def shape(self) -> Sequence[int]:
        """Outputs and inputs."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some of the rows."""


class Linear:
    """A packed matrix, [outputs, inputs]."""

    fine = False  # True where rows come in two parts

    def __init__(self, weight: Matrix) -> None:
        self.outputs, self.inputs = weight.shape
        self.packed, self.apply = pack(weight), kernel()

    def __call__(self, rows: Tensor) -> Tensor:
        """Products of rows scaled to [-1, 1], float32 [rows, outputs]."""
        if isinstance(self.packed, Streamed):
            return torch.from_numpy(stream.products(self.packed, rows.numpy(), self.fine))
        return self._multiply(rows)

    def _multiply(self, rows: Tensor) -> Tensor:
        """The same by FBGEMM."""
        out: Tensor = self.apply(rows, STEP, ZERO, self.packed)
        return out

    def rounded(self, bits: int) -> "Linear":
        """The same matrix for rows in eight bits; below eight bits its weights are put on a coarser grid too."""
        if bits < BITS:
            return Linear(coarse(unpack(self.packed), bits))
        made = Linear.__new__(Linear)
        made.outputs, made.inputs, made.packed, made.apply = self.outputs, self.inputs, self.packed, self.apply
        return made


class Fine(Linear):
    """A packed matrix whose rows come in two parts, what the grid holds and what it leaves: 15 bits instead of 8.

    Twice the rows take little longer while a pass waits for its weights.
    """

    fine = True

    def _multiply(self, rows: Tensor) -> Tensor:
        count, inputs = rows.shape
        parts = torch.empty(2 * count, inputs)
        kernels.part(rows.numpy(), parts.numpy())
        out = super()._multiply(parts)
        kernels.join(out.numpy())
        return out[:count]


def pack(weight: Matrix) -> Any:
    """Each output's weights in whole numbers, with a scale of its own."""
    if stream.available():
        return streamed(weight)
    torch.backends.quantized.engine = ENGINE
    return torch.ops.quantized.linear_prepack(rounded(weight[:])[0], None)


def streamed(weight: Matrix) -> Streamed:
    """The same, a strip at a time: nothing but what is kept takes memory for the whole matrix."""
    outputs, inputs = weight.shape
    made, height = Streamed(outputs, inputs), max(1, STRIP // (BLOCK * inputs)) * BLOCK
    for start in range(0, outputs, height):
        strip, scales = rounded(weight[start : start + height])
        made.put(start, strip.int_repr(), scales)
    return made


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in whole numbers, qint8 [outputs, inputs], and float64 scales [outputs]."""
    exact = weight.detach().float()
    largest = torch.maximum(exact.amax(1), -exact.amin(1))  # of the magnitudes, which take no memory this way
    scales = (largest / LEVELS).clamp(min=torch.finfo(torch.float32).tiny).double()
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these tensors will go: the packed layers need them, `available` watches
        return torch.quantize_per_channel(exact, scales, zeros, 0, torch.qint8), scales


def unpack(packed: Any) -> Tensor:
    """The weights of a packed matrix, float32 [outputs, inputs]."""
    if isinstance(packed, Streamed):
        return packed.exact()
    weight: Tensor = torch.ops.quantized.linear_unpack(packed)[0].dequantize()
    return weight


def kernel() -> Any:
    """The product of packed weights and rows on a fixed grid; None where this torch has none."""
    packet = getattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32", None)
    return None if packet is None else packet.default._op  # past the checks of the wrapper: thousands of calls a second


def available() -> bool:
    """True where there is a way to run packed layers."""
    return stream.available() or (ENGINE in torch.backends.quantized.supported_engines and kernel() is not None)
