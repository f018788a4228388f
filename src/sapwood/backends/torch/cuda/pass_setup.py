"""Inputs of a pass over a tree on the device, written without the host."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, WORDS, DeviceRows
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.pass_inputs import PassInputs, PassShape


@triton.jit
def _place(
    tokens, depths, words, inputs, facts,
    rows: tl.constexpr, blocks: tl.constexpr, count: tl.constexpr, wide: tl.constexpr,
    each: tl.constexpr, fields: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    wait()
    first = tl.load(facts)
    length = tl.load(facts + 1)
    used = tl.load(facts + 2)
    at = tl.arange(0, tile)
    live = at < used
    inside = at < rows
    tl.store(inputs + at, tl.load(tokens + at, live, 0), inside)
    depth = tl.load(depths + at, live, 0)
    chain = tl.sum((live & (depth != at)).to(tl.int32), 0) == 0
    tl.store(inputs + rows + at, depth + length, inside)
    tl.store(inputs + 2 * rows + at, tl.where(live, first + length + at, -1).to(tl.int64), inside)
    block = inputs + 3 * rows + at
    held = tl.minimum(tl.maximum(used - at * each, 0), each)
    tl.store(block, tl.full((tile,), 0, tl.int64) + first, at < blocks)
    tl.store(block + blocks, tl.full((tile,), 0, tl.int64) + length, at < blocks)
    tl.store(block + 2 * blocks, (at * each).to(tl.int64), at < blocks)
    tl.store(block + 3 * blocks, held.to(tl.int64), at < blocks)
    tl.store(block + 4 * blocks, tl.full((tile,), 0, tl.int64) + used, at < blocks)
    tl.store(block + 5 * blocks, tl.full((tile,), 0, tl.int64) + chain.to(tl.int64), at < blocks)
    seen = inputs + 3 * rows + fields * blocks
    for word in tl.static_range(count):
        bits = tl.load(words + at * wide + word, live, 0)
        tl.store(seen + at * count + word, bits, inside)


def place(rows: DeviceRows, facts: Tensor, inputs: PassInputs, shape: PassShape) -> None:
    """Write the inputs of the pass over a tree, from its `PassArgs`."""
    assert shape.blocks <= ROWS >= shape.rows
    fields = (shape.size - 3 * shape.rows) // shape.blocks
    _place[1,](
        rows.tokens, rows.depths, rows.words, inputs.on_device, facts,
        shape.rows, shape.blocks, min(shape.words, WORDS), rows.words.shape[1],
        shape.tiles.rows, fields,
        ROWS, **options(),
    )  # fmt: skip
