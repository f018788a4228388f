"""From a verdict to the next growth without the host, as a Triton kernel; `plain` says what it does."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.launch import options, wait
from sapwood.backends.torch.fused.plain import LAST, NEW, ROOT_AT, ROOT_TOKEN
from sapwood.backends.torch.fused.tree import Parcel


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
