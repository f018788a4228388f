"""From a verdict to the next growth, and to the pass over its tree, without the host; `plain` says what is done."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.launch import options, wait
from sapwood.backends.torch.fused.plain import HOME, LAST, NEW, NODES, ROOT_AT, ROOT_TOKEN
from sapwood.backends.torch.fused.tree import LONGEST, Parcel


@triton.jit
def _onward(
    verdict, drafted, facts, tokens,
    new_at: tl.constexpr, last_at: tl.constexpr, root_at: tl.constexpr, token_at: tl.constexpr, most: tl.constexpr,
):  # fmt: skip
    wait()
    count, bonus, each = tl.load(verdict), tl.load(verdict + 1), tl.arange(0, most)
    new = tl.minimum(count, most)
    node = tl.load(verdict + 3 + each, each < new - 1, 0)
    said = tl.load(drafted + node, each < new - 1, 0)
    tl.store(tokens + each, tl.where(each == new - 1, bonus, said))
    tl.store(facts + new_at, new)
    tl.store(facts + last_at, new - 1)
    tl.store(facts + root_at, tl.load(facts + root_at) + count)
    tl.store(facts + token_at, bonus)


def onward(parcel: Parcel, facts: Tensor, tokens: Tensor) -> None:
    """Complete what the host told before it knew the verdict."""
    _onward[1,](
        parcel.field("verdict"), parcel.rows.tokens, facts, tokens, NEW, LAST, ROOT_AT, ROOT_TOKEN, len(tokens),
        **options(warps=1),
    )  # fmt: skip


@triton.jit
def _proceed(
    verdict, facts, told, home: tl.constexpr, root_at: tl.constexpr, nodes: tl.constexpr, most: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    wait()
    count, each = tl.load(verdict), tl.arange(0, tile)
    node = tl.load(verdict + 2 + each, each < most, 0)
    stay = tl.min(tl.where((node != each) & (each < count), each, count), 0)
    length = tl.load(facts + root_at)
    tl.store(told, tl.load(facts + home))
    tl.store(told + 1, length)
    tl.store(told + 2, tl.load(facts + nodes) + 1)
    tl.store(told + 3, length - count)
    tl.store(told + 4, stay)
    tl.store(told + 5, count)


def proceed(parcel: Parcel, facts: Tensor, told: Tensor) -> None:
    """Tell the pass over the tree that has grown what `Facts` would."""
    tile = triton.next_power_of_2(LONGEST)
    _proceed[1,](parcel.field("verdict"), facts, told, HOME, ROOT_AT, NODES, LONGEST, tile, **options(warps=1))
