"""Mixture of attentions (arXiv 2410.03804): a draft layer with three kinds of attention.

Attention over the target's layers makes one memory row of each token that the target has read; its
mean over the layers is kept. A drafted token attends to the tokens before it (self-attention) and
then to the memory (cross-attention). Only checked tokens have memory rows, so what the network sees
while it drafts is what it saw in training; drafted tokens are seen by self-attention alone.

The paper attends over the keys and values of all layers; here the rows are hidden states of a few.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm, linear
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class MoaConfig:
    """Sizes of a mixture of attentions and of the target it was made for."""

    shape: LayerShape  # its width is the target's
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    features: tuple[int, ...]  # target layers whose inputs are read
    context: int = 8192


class LayerAttention(nn.Module):
    """Self-attention over the layers of one token, without a mask; the mean over the layers."""

    def __init__(self, shape: LayerShape, layers: int) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norms = nn.ModuleList(RMSNorm(shape.width, shape.eps) for _ in range(layers))
        self.places = nn.Parameter(torch.zeros(layers, shape.width))  # tells the layers apart
        self.qkv = linear(shape.width, 3 * shape.heads * shape.head_width)
        self.leave = linear(shape.heads * shape.head_width, shape.width)

    def forward(self, features: Tensor) -> Tensor:
        """Memory rows [..., width] of features [..., layers * width]."""
        parts = features.chunk(len(self.norms), -1)
        rows = torch.stack(
            [norm(part) for norm, part in zip(self.norms, parts, strict=True)], -2
        )  # [..., layers, width]
        found = self.qkv(rows + self.places).unflatten(-1, (3 * self.heads, -1))
        query, key, value = found.transpose(-3, -2).chunk(3, -3)  # [..., heads, layers, d]
        read = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = (rows + self.leave(read.transpose(-3, -2).flatten(-2))).mean(-2)
        return out


class MoaHead(TiedBase):
    """Tokens and memory rows in, logits over the draft vocabulary out."""

    kind: ClassVar[str] = "moa"

    def __init__(self, config: MoaConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        shape = config.shape
        self.remember: nn.Module = LayerAttention(shape, len(config.features))
        self.own_norm = RMSNorm(shape.width, shape.eps)
        self.own = Attention(shape, shape.width)
        self.cross_norm = RMSNorm(shape.width, shape.eps)
        self.memory_norm = RMSNorm(shape.width, shape.eps)
        self.cross = Attention(shape, shape.width)
        self.mlp_norm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)
        self.norm = RMSNorm(shape.width, shape.eps)

    def project(self, embeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens [batch, rows, width] for self-attention."""
        return self.own.project(self.own_norm(embeds), positions)

    def project_memory(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of checked tokens, from features [batch, rows, layers * width]."""
        memory = self.memory_norm(self.remember(features))
        _, key, value = self.cross.project(memory, positions)
        return key, value

    def ask(self, states: Tensor, positions: Tensor) -> Tensor:
        """Queries of cross-attention, from states behind self-attention [batch, rows, width]."""
        query, _, _ = self.cross.project(self.cross_norm(states), positions)
        return query

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """Outputs from states and what cross-attention read, [batch, rows, width]."""
        middle = states + read
        out: Tensor = middle + self.mlp(self.mlp_norm(middle))
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(self.norm(outputs))
