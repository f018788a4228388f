"""MXFP4 blocks as float32: 32 weights of 4 bits that share a power of two."""

import numpy as np
import torch
from torch import Tensor

METHOD = "mxfp4"  # name of the format in a config.json
GROUP = 32  # weights of a block
BIAS = 127  # of the exponents
# a sign, two bits of exponent, one of mantissa
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
# both weights of every byte, the one in its low half first, [256, 2]
PAIRS = torch.stack((VALUES.repeat(16), VALUES.repeat_interleave(16)), 1).numpy()
BOTH = PAIRS.view(np.int64)[:, 0]  # a pair is read at once


def dequantize(blocks: Tensor, exponents: Tensor) -> Tensor:
    """Weights, float32 [outputs, inputs].

    Blocks are uint8 [outputs, inputs / 32, 16], two weights a byte; exponents uint8
    [outputs, inputs / 32].
    """
    weights = BOTH.take(blocks.numpy()).view(np.float32)  # [outputs, groups, 32]
    weights *= np.ldexp(np.float32(1.0), exponents.numpy().astype(np.int32) - BIAS)[..., None]
    return torch.from_numpy(weights).flatten(1)
