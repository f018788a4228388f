"""Finds the keys of each tree row's open chunks, in the order of positions, once a pass."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.attention import block_fields
from sapwood.backends.torch.cuda.kernels.attention_tiles import CHUNK, AttentionTiles
from sapwood.backends.torch.cuda.kernels.key_groups import STEP
from sapwood.backends.torch.cuda.kernels.launch import options, wait


@triton.jit
def ones_in(bits):
    """Number of ones in 64-bit words."""
    bits = bits - ((bits >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    bits += bits >> 32
    return (bits & 0x7F).to(tl.int32)


@triton.jit
def path_nodes(words, depth, count: tl.constexpr):
    """Nodes of a row's path at these depths [STEP], from the bits of its ancestor words.

    Nodes of a path are in the order of their depths: the one at depth d has the bit number d of
    those that are set, found by halving.
    """
    found = tl.zeros_like(depth)
    above = 0
    for word in range(count):
        bits = tl.load(words + word).to(tl.uint64, bitcast=True)
        wanted = depth - above
        place = tl.zeros_like(depth)
        for half in tl.static_range(6):
            low = (bits >> place.to(tl.uint64)) & (0xFFFFFFFF >> (32 - (32 >> half)))
            many = ones_in(low)
            place = tl.where(wanted >= many, place + (32 >> half), place)
            wanted = tl.where(wanted >= many, wanted - many, wanted)
        count_here = ones_in(bits)
        inside = (depth >= above) & (depth < above + count_here)
        found = tl.where(inside, 64 * word + place, found)
        above += count_here
    return found


@triton.jit
def _open_paths(
    words, positions, blocks, paths, count: tl.constexpr, opens: tl.constexpr
):  # fmt: skip
    wait()
    _, length, first, held, chain = block_fields(blocks + tl.program_id(0), tl.num_programs(0))
    mine = tl.program_id(1)
    if (mine < held) & (chain == 0):
        row = first + mine
        lanes = tl.arange(0, STEP)
        closed = length // STEP * STEP
        end = tl.load(positions + row).to(tl.int32) + 1
        for chunk in range((end - closed + STEP - 1) // STEP):
            at = closed + chunk * STEP + lanes
            node = path_nodes(words + row * count, at - length, count)
            where = tl.where(at < length, at, length + node)
            tl.store(paths + (row * opens + chunk) * STEP + lanes, where)


def open_paths(words: Tensor, positions: Tensor, blocks: Tensor, tiles: AttentionTiles) -> Tensor:
    """Slots of each row's open chunks in the order of positions, [m, chunks * CHUNK] int32.

    They count from the first slot of a row's sequence. Words have bit i of word w for node
    64 w + i if it is the row or above it; they are unused in chains.
    """
    if not tiles.trees:
        return positions.new_empty(1, dtype=torch.int32)
    opens = words.shape[1] + 1  # chunks that a path may reach into
    paths = torch.empty(len(words), opens * CHUNK, dtype=torch.int32, device=words.device)
    _open_paths[blocks.shape[1], tiles.rows](
        words, positions, blocks, paths, words.shape[1], opens, **options()
    )
    return paths
