"""A tree that lies on the device becomes the description of a pass, without the host."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.graphs import Inbox, Shape
from sapwood.backends.torch.fused.launch import options, wait
from sapwood.backends.torch.fused.tree import ROWS, WORDS, Rows


@triton.jit
def _place(
    tokens, depths, words, inbox, facts,
    rows: tl.constexpr, blocks: tl.constexpr, count: tl.constexpr, wide: tl.constexpr, kinds: tl.constexpr,
    each: tl.constexpr, fields: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    wait()
    first, length, used, at = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2), tl.arange(0, tile)
    live, inside = at < used, at < rows
    tl.store(inbox + at, tl.load(tokens + at, live, 0), inside)
    tl.store(inbox + rows + at, tl.load(depths + at, live, 0) + length, inside)
    tl.store(inbox + 2 * rows + at, tl.where(live, first + length + at, -1).to(tl.int64), inside)
    block = inbox + 3 * rows + at
    held = tl.minimum(tl.maximum(used - at * each, 0), each)
    tl.store(block, tl.full((tile,), 0, tl.int64) + first, at < blocks)
    tl.store(block + blocks, tl.full((tile,), 0, tl.int64) + length, at < blocks)
    tl.store(block + 2 * blocks, (at * each).to(tl.int64), at < blocks)
    tl.store(block + 3 * blocks, held.to(tl.int64), at < blocks)
    tl.store(block + 4 * blocks, tl.full((tile,), 0, tl.int64) + used, at < blocks)
    seen = inbox + 3 * rows + fields * blocks
    for word in tl.static_range(count):
        bits = tl.load(words + at * wide + word, live, 0)
        for kind in tl.static_range(kinds):
            tl.store(seen + (kind * rows + at) * count + word, bits, inside)


def place(rows: Rows, facts: Tensor, inbox: Inbox, shape: Shape) -> None:
    """Describe the pass over a tree, as `Facts` has it."""
    assert shape.blocks <= ROWS >= shape.rows
    fields = (shape.size - 3 * shape.rows) // shape.blocks
    _place[1,](
        rows.tokens, rows.depths, rows.words, inbox.there, facts,
        shape.rows, shape.blocks, min(shape.words, WORDS), rows.words.shape[1], inbox.kinds, shape.cut.rows, fields,
        ROWS, **options(),
    )  # fmt: skip
