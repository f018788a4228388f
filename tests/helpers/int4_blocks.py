"""Matrices in blocks of random integers."""

import numpy as np

from sapwood.backends.torch.cpu_int8.block_gemm import BlockMatrix, BlockStrip
from sapwood.backends.torch.cpu_int8.block_tile import BITS, GROUP, MIN4


def random_strip(form: int, outputs: int, groups: int, seed: int = 0) -> BlockStrip:
    """Random integers under random scales, and minima where the form has them."""
    noise = np.random.default_rng(seed)
    size = GROUP * BITS[form] // 8
    weights = noise.integers(0, 256, (outputs, groups, size), dtype=np.uint8)
    steps = noise.uniform(0.25, 2, (2, outputs, groups)).astype(np.float16)
    return BlockStrip(form, weights, steps[0], -8 * steps[1] if form == MIN4 else None)


def packed_blocks(*strips: BlockStrip) -> BlockMatrix:
    """A matrix of these strips, one under the other."""
    inputs = strips[0].weights.shape[1] * GROUP
    made = BlockMatrix(inputs, [(each.form, each.outputs) for each in strips])
    start = 0
    for each in strips:
        made.put(start, each)
        start += each.outputs
    return made
