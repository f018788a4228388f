"""Linear layers with eight-bit weights: streamed where the processor can, else in FBGEMM's form inside torch.

A row comes scaled to [-1, 1] by its own largest magnitude, so one fixed grid of 255 steps serves all
rows and a row's result does not depend on its neighbours: the products are sums of whole numbers,
exact in any order, and the same bits in both forms.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.packed import kernels, stream
from sapwood.backends.torch.packed.stream import STEP, ZERO, Streamed
from sapwood.backends.torch.parts import coarse

BITS = 8
LEVELS = 127  # whole numbers on each side of zero that a weight may take
ENGINE = "fbgemm"


class Linear:
    """A packed matrix, [outputs, inputs]."""

    fine = False  # True where rows come in two parts

    def __init__(self, weight: Tensor) -> None:
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


def pack(weight: Tensor) -> Any:
    """Each output's weights in whole numbers, with a scale of its own."""
    exact = weight.detach().float()
    largest = torch.maximum(exact.amax(1), -exact.amin(1))  # of the magnitudes, which take no memory this way
    scales = (largest / LEVELS).clamp(min=torch.finfo(torch.float32).tiny).double()
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these tensors will go: the packed layers need them, `available` watches
        rounded = torch.quantize_per_channel(exact, scales, zeros, 0, torch.qint8)
    if stream.available():
        return Streamed(rounded.int_repr(), scales)
    torch.backends.quantized.engine = ENGINE
    return torch.ops.quantized.linear_prepack(rounded, None)


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
