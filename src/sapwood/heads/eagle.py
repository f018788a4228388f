"""The head of EAGLE (arXiv 2401.15077) and EAGLE-2: one decoder layer that continues the target's final states.

Row t joins the final state at position t with the token at t + 1 and predicts the final state at
t + 1, from which the target's own output head says the token at t + 2.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.borrowed import Borrowed
from sapwood.heads.layers import Attention, GatedMLP, Norm, Shape


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Sizes of an EAGLE head and of the target it was made for."""

    shape: Shape
    target_width: int  # the head's own: it predicts the target's states
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose; 0: all
    features: tuple[int]  # the target's last layer number plus one: what its output head reads
    context: int = 8192


class Carrying(Attention):
    """Attention whose queries carry the rows they were made of, and whose result holds these rows again.

    Whoever runs a head keeps queries and states, and hands `finish` the states that went in. Here the
    residual stream is not those states but the joined rows, so they travel with the queries as more heads.
    """

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with the rows behind them, keys and values."""
        query, key, value = super().project(x, positions)
        each = self.shape.head_width
        rows = F.pad(x, (0, -x.shape[-1] % each)).view(*x.shape[:-1], -1, each).transpose(1, 2)
        return torch.cat((query, rows), 1), key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        """The rows plus what they read."""
        read = super().attend(query[:, : self.shape.heads], key, value, mask, causal)
        return self.carried(query) + read

    def carried(self, query: Tensor) -> Tensor:
        """The rows that queries carry, [batch, rows, width]."""
        return query[:, self.shape.heads :].transpose(1, 2).flatten(2)[..., : self.shape.width]


class EagleLayer(nn.Module):
    """Embedding and state joined by one matrix, then a decoder layer without a norm at its input."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        shape = config.shape
        self.fc = nn.Linear(2 * shape.width, shape.width)
        self.self_attn = Carrying(shape, shape.width)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)

    def project(self, embeds: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (with the joined rows), keys and values of embeddings and states, both [batch, rows, width]."""
        return self.self_attn.project(self.fc(torch.cat((embeds, states), -1)), positions)

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from what attention gave; the states are in there already."""
        out: Tensor = read + self.mlp(self.post_attention_layernorm(read))
        return out


class Eagle(Borrowed):
    """Final states in, the next final state out."""

    kind: ClassVar[str] = "eagle"

    def __init__(self, config: EagleConfig) -> None:
        super().__init__(config.target_width, config.vocab, config.draft_vocab)
        self.config = config
        self.midlayer = EagleLayer(config)

    @property
    def fc(self) -> nn.Linear:
        """The matrix that joins embedding and state."""
        return self.midlayer.fc

    def begin(self, features: Tensor) -> Tensor:
        """States of the first step: the target's final states as they are."""
        return features

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.speak(outputs)
