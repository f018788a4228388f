"""Weights in 8 or 4 bits for the kernels on CUDA, and their quantisation.

Two layouts. Rows in 8 bits, int8 or float8, have a scale for each output. Blocks have a scale for
each group of inputs; the blocks of all outputs that a step of the kernel reads lie side by side,
and a byte of 4-bit weights holds the inputs j and j + half a block, so that both halves of a block
are read in the order of the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sapwood.errors import SapwoodError

# forms of a weight; `FLOATS` is a plain tensor
FLOATS = 0
ROWS8 = 1  # q * scale of the output, q int8 or float8
MINIMUM4 = 2  # q * scale + minimum of the group, q 0..15
ZERO4 = 3  # (q - zero point of the group) * scale
ZERO8 = 4  # the same, q 0..255
MIDDLE4, MIDDLE8 = 8, 128  # zero points of weights around zero
BLOCKS = (128, 64, 32)  # inputs of a block: the most that divide a group
FP8 = torch.float8_e4m3fn
FORMATS = {"int8": torch.int8, "fp8": FP8}  # of rows in 8 bits
LARGEST = {torch.int8: 127.0, FP8: 448.0}
GROUP4 = 32  # inputs that share a scale and a minimum in our own 4 bits, as on the CPU
MOST4 = 15
NARROWER = (1.0, 0.95, 0.9, 0.85, 0.8)  # shares of a group's range that are tried, as on the CPU
TINY = 2.0**-24  # smallest step in float16
STRIP = 1 << 24  # weights that are quantised at once


@dataclass(frozen=True, slots=True)
class QuantWeight:
    """A weight in 8 or 4 bits, which the projections take in place of a tensor."""

    form: int
    outputs: int
    inputs: int
    group: int  # inputs that share a scale; 0: all of a row
    data: Tensor  # [outputs, inputs], or uint8 [blocks, outputs, bytes]
    scales: Tensor  # [outputs] float32, or int32 [groups, outputs]: `joined` scales and shifts

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.outputs, self.inputs

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.data.nbytes + self.scales.nbytes

    @property
    def kind(self) -> str:
        """Name of the layout, for tiles that were measured with it."""
        if self.form == ROWS8:
            return "fp8" if self.data.dtype == FP8 else "int8"
        return f"{8 if self.form == ZERO8 else 4}x{self.group}"

    def floats(self) -> Tensor:
        """The weights that it stands for, float32 [outputs, inputs]."""
        if self.form == ROWS8:
            return self.data.float() * self.scales[:, None]
        whole = self.data if self.form == ZERO8 else unpack_halves(self.data)
        numbers = whole.transpose(0, 1).reshape(self.outputs, -1).float()
        each = torch.arange(numbers.shape[1], device=numbers.device) // self.group
        each = each.clamp(max=len(self.scales) - 1)
        pairs = self.scales[each].T.contiguous().view(torch.float16).float()
        scales, shifts = pairs[:, ::2], pairs[:, 1::2]
        minimum = self.form == MINIMUM4
        made = numbers * scales + shifts if minimum else (numbers - shifts) * scales
        return made[:, : self.inputs]

    def to(self, device: torch.device) -> "QuantWeight":
        """The same weight on a device."""
        return replace(self, data=self.data.to(device), scales=self.scales.to(device))


def joined(scales: Tensor, shifts: Tensor | float) -> Tensor:
    """Scales and zero points or minima [groups, outputs] as two float16 in a word, int32.

    The kernel reads both at once: Triton starts loads of fewer than 32 bits only when they are due.
    """
    if isinstance(shifts, Tensor):
        pairs = torch.stack((scales.half(), shifts.half()), -1)
    else:
        pairs = torch.stack((scales.half(), torch.full_like(scales, shifts).half()), -1)
    return pairs.contiguous().view(torch.int32)[..., 0]


def block_of(group: int) -> int:
    """Inputs of a block, of weights whose groups have so many."""
    found = next((block for block in BLOCKS if group % block == 0), 0)
    if not found:
        raise SapwoodError(f"groups of {group} weights have no products here; use 32, 64 or 128")
    return found


def unpack_halves(packed: Tensor) -> Tensor:
    """The numbers of bytes that hold the two halves of a block, [..., 2 bytes]."""
    return torch.cat((packed & 15, packed >> 4), -1)


def stacked(parts: Sequence[QuantWeight]) -> QuantWeight:
    """Weights of one layout and as many inputs, one under the other."""
    first = parts[0]
    layout = first.form, first.group, first.inputs
    assert all((part.form, part.group, part.inputs) == layout for part in parts)
    axis = 0 if first.form == ROWS8 else 1
    return QuantWeight(
        first.form,
        sum(part.outputs for part in parts),
        first.inputs,
        first.group,
        torch.cat([part.data for part in parts], axis).contiguous(),
        torch.cat([part.scales for part in parts], -1).contiguous(),
    )


# ---------------------------------------------------------------------------------- quantisation
def to_rows(weight: Tensor, kind: torch.dtype) -> QuantWeight:
    """Floats [outputs, inputs] in 8 bits, int8 or float8, with a scale for each output."""
    outputs, inputs = weight.shape
    data = torch.empty(outputs, inputs, dtype=kind, device=weight.device)
    scales = torch.empty(outputs, dtype=torch.float32, device=weight.device)
    for part in strips(outputs, inputs):
        wide = weight[part].float()
        scale = (wide.abs().amax(1) / LARGEST[kind]).clamp(min=TINY)
        made = wide / scale[:, None]
        data[part] = (made.round() if kind is torch.int8 else made).to(kind)
        scales[part] = scale
    return QuantWeight(ROWS8, outputs, inputs, 0, data, scales)


def to_blocks_of_4(weight: Tensor, group: int = GROUP4) -> QuantWeight:
    """Floats [outputs, inputs] in 4 bits with a scale and a minimum for each group.

    The rounding is that of the CPU's blocks: of some ranges around the middle of a group the one
    with the least square error.
    """
    outputs, inputs = weight.shape
    parts = []
    for part in strips(outputs, inputs):
        wide = weight[part].float()
        missing = -inputs % group
        wide = torch.nn.functional.pad(wide, (0, missing)).view(len(wide), -1, group)
        whole, scales, least = _rounded(wide)
        packed = pack_blocks(MINIMUM4, whole.flatten(1), group)
        parts.append(
            QuantWeight(MINIMUM4, len(wide), inputs, group, packed, joined(scales.T, least.T))
        )  # fmt: skip
    return stacked(parts)


def _rounded(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers 0..15 [outputs, groups, group], scales and minima [outputs, groups], float16."""
    low, high = groups.amin(-1), groups.amax(-1)
    middle, half = (high + low) / 2, (high - low) / 2
    best = torch.full_like(low, torch.inf)
    whole = torch.zeros_like(groups, dtype=torch.uint8)
    scales = torch.zeros_like(low, dtype=torch.float16)
    least = torch.zeros_like(scales)
    for share in NARROWER:
        scale = (2 * share * half / MOST4).clamp(min=TINY).half()
        start = (middle - share * half).half()
        step, shift = scale.float()[..., None], start.float()[..., None]
        made = ((groups - shift) / step).round().clamp(0, MOST4)
        error = (made * step + shift - groups).square().sum(-1)
        wins = error < best
        best = torch.where(wins, error, best)
        whole = torch.where(wins[..., None], made.to(torch.uint8), whole)
        scales, least = torch.where(wins, scale, scales), torch.where(wins, start, least)
    return whole, scales, least


def pack_blocks(form: int, numbers: Tensor, group: int) -> Tensor:
    """Numbers uint8 [outputs, inputs] as [blocks, outputs, bytes]; the last block is filled up."""
    block = block_of(group)
    numbers = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % block))
    blocks = numbers.view(len(numbers), -1, block).transpose(0, 1)
    if form != ZERO8:
        blocks = blocks[..., : block // 2] | blocks[..., block // 2 :] << 4
    return blocks.contiguous()


def strips(outputs: int, inputs: int) -> list[slice]:
    """Slices of the outputs with some million weights each."""
    height = max(1, STRIP // inputs)
    return [slice(start, start + height) for start in range(0, outputs, height)]
