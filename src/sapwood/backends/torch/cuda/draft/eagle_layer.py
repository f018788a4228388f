"""Weights of a one-layer EAGLE-3 head, fused, and the level sizes of the trees it drafts."""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.prenorm import NormScale
from sapwood.core.array_types import IntArray

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # bins of confidence
# ranks among siblings, doubling bands of depth
RANKS = 6
BANDS = 5
CELLS = (len(EDGES) + 1) * RANKS * BANDS


@dataclass(frozen=True)
class EagleWeights:
    """An EAGLE-3 head: features to states, one decoder layer, and rows of output."""

    heads: int
    kv_heads: int
    head_width: int
    inner: int
    eps: float
    after: bool  # the residual is the feature after its norm, not before
    rates: Tensor  # [head width / 2] float32, radians per position
    embedding: Tensor  # [vocab, width]
    vocabulary: Tensor  # [draft vocab] target ids, ascending
    fuse: Tensor  # [width, features]
    token_norm: Tensor  # [width]
    state_norm: Tensor
    qkv: Tensor  # queries, keys and values, one under the other
    out: Tensor
    mlp_norm: NormScale
    gate_up: Tensor  # gate rows, then up rows
    down: Tensor
    norm: NormScale
    head: Tensor  # [draft vocab, width]

    @property
    def width(self) -> int:
        """Hidden size."""
        return self.down.shape[0]


def describe(net: Any, embedding: Tensor) -> EagleWeights:
    """The layer of an EAGLE-3 head; its fused projections become views of the same memory."""
    shape, layer = net.config.shape, net.midlayer
    attention = layer.self_attn
    mlp = layer.mlp
    half = net.config.shape.head_width // 2
    steps = torch.arange(half, device=embedding.device, dtype=torch.float32)
    return EagleWeights(
        shape.heads,
        shape.kv_heads,
        shape.head_width,
        shape.inner,
        shape.eps,
        layer.after,
        shape.theta ** (steps / -half),
        embedding.detach(),
        net.vocabulary.to(embedding.device),
        net.fc.weight.detach(),
        layer.input_layernorm.weight.detach(),
        layer.hidden_norm.weight.detach(),
        fused(attention.q_proj, attention.k_proj, attention.v_proj),
        attention.o_proj.weight.detach(),
        NormScale.of(layer.post_attention_layernorm.weight, shape.eps),
        fused(mlp.gate_proj, mlp.up_proj),
        mlp.down_proj.weight.detach(),
        NormScale.of(net.norm.weight, shape.eps),
        net.lm_head.weight.detach(),
    )


def fused(*projections: Any) -> Tensor:
    """The weights of these projections, one under the other; the projections keep views of them."""
    whole = torch.cat([part.weight.detach() for part in projections])
    pieces = whole.split_with_sizes([len(part.weight) for part in projections])
    for part, piece in zip(projections, pieces, strict=True):
        part.weight.data = piece
    return whole


@dataclass(frozen=True)
class LevelSizes:
    """Nodes of each level of a tree: the shape that a draft is captured for."""

    depth: int
    beam: int
    width: int

    def rows(self, depth: int) -> int:
        """Nodes expanded at this depth."""
        return 1 if depth == 0 else min(self.beam, self.width * self.rows(depth - 1))

    def first(self, depth: int) -> int:
        """Index of the first node at this depth in the drafted tree."""
        return 1 + self.width * sum(self.rows(level) for level in range(depth - 1))

    def before(self, depth: int) -> int:
        """Nodes expanded above this depth, the root left out."""
        return sum(self.rows(level) for level in range(1, depth))

    @cached_property
    def size(self) -> int:
        """Nodes of the drafted tree, the root included."""
        return self.first(self.depth + 1)

    @cached_property
    def opened(self) -> int:
        """Nodes that are expanded besides the root."""
        return self.before(self.depth)

    @cached_property
    def depths(self) -> IntArray:
        """Depth of each drafted node."""
        counts = [1, *(self.width * self.rows(depth) for depth in range(self.depth))]
        return np.repeat(np.arange(self.depth + 1), counts)

    @cached_property
    def ranks(self) -> IntArray:
        """Rank of each drafted node among its siblings."""
        return np.append(0, np.arange(self.size - 1) % self.width)


@cache
def level_sizes(depth: int, beam: int, width: int) -> LevelSizes:
    """The cached `LevelSizes` of these numbers: its properties are computed once."""
    return LevelSizes(depth, beam, width)


def band(depth: int) -> int:
    """The band of this depth, from 1 on: each is twice as wide as the one before."""
    return min(depth.bit_length() - 1, BANDS - 1)
