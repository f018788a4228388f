"""Arguments of the prelaunched draft and pass, computed on the device; as in `reference`."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import LONGEST, RoundBuffer
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    LAST,
    NEW,
    NODES,
    ROOT_AT,
    ROOT_TOKEN,
)
from sapwood.backends.torch.cuda.kernels.launch import options, wait


@triton.jit
def _complete_draft_args(
    verdict, drafted, scalars, tokens,
    new_at: tl.constexpr, last_at: tl.constexpr, root_at: tl.constexpr, token_at: tl.constexpr,
    most: tl.constexpr,
):  # fmt: skip
    wait()
    count = tl.load(verdict)
    bonus = tl.load(verdict + 1)
    each = tl.arange(0, most)
    new = tl.minimum(count, most)
    node = tl.load(verdict + 3 + each, each < new - 1, 0)
    target_tokens = tl.load(drafted + node, each < new - 1, 0)
    tl.store(tokens + each, tl.where(each == new - 1, bonus, target_tokens))
    tl.store(scalars + new_at, new)
    tl.store(scalars + last_at, new - 1)
    tl.store(scalars + root_at, tl.load(scalars + root_at) + count)
    tl.store(scalars + token_at, bonus)


def complete_draft_args(round_buffer: RoundBuffer, scalars: Tensor, tokens: Tensor) -> None:
    """Complete a draft's scalars and tokens of new text from the verdict."""
    _complete_draft_args[1,](
        round_buffer.field("verdict"), round_buffer.rows.tokens, scalars, tokens, NEW, LAST,
        ROOT_AT, ROOT_TOKEN, len(tokens),
        **options(warps=1),
    )  # fmt: skip


@triton.jit
def _write_pass_args(
    verdict, scalars, told, home: tl.constexpr, root_at: tl.constexpr, nodes: tl.constexpr,
    most: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    wait()
    count = tl.load(verdict)
    each = tl.arange(0, tile)
    node = tl.load(verdict + 2 + each, each < most, 0)
    stay = tl.min(tl.where((node != each) & (each < count), each, count), 0)
    length = tl.load(scalars + root_at)
    tl.store(told, tl.load(scalars + home))
    tl.store(told + 1, length)
    tl.store(told + 2, tl.load(scalars + nodes) + 1)
    tl.store(told + 3, length - count)
    tl.store(told + 4, stay)
    tl.store(told + 5, count)


def write_pass_args(round_buffer: RoundBuffer, scalars: Tensor, told: Tensor) -> None:
    """Write the `PassArgs` of the pass over the drafted tree."""
    tile = triton.next_power_of_2(LONGEST)
    _write_pass_args[1,](
        round_buffer.field("verdict"),
        scalars,
        told,
        FIRST_SLOT,
        ROOT_AT,
        NODES,
        LONGEST,
        tile,
        **options(warps=1),
    )
