"""The head of EAGLE (arXiv 2401.15077) and EAGLE-2: one decoder layer over final states.

Row t joins the target's final state at position t with the token at t + 1 and predicts the final
state at t + 1, from which the target's own output head predicts the token at t + 2.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Sizes of an EAGLE head and of the target it was made for."""

    shape: LayerShape
    target_width: int  # the head's own: it predicts the target's states
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose; 0: all
    features: tuple[int]  # number of the target's layers: the input of its output head
    context: int = 8192


class StateAttention(Attention):
    """Attention whose queries carry their input rows, and whose result includes them.

    The caller of a head keeps queries and states, and passes the input states to `finish`. Here the
    residual stream is not those states but the joined rows, so they are appended to the queries as
    further heads.
    """

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with their rows appended, keys and values."""
        query, key, value = super().project(x, positions)
        each = self.shape.head_width
        rows = F.pad(x, (0, -x.shape[-1] % each)).view(*x.shape[:-1], -1, each).transpose(1, 2)
        return torch.cat((query, rows), 1), key, value

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """The rows plus the output of attention."""
        read = super().attend(query[:, : self.shape.heads], key, value, mask, causal)
        return self.carried(query) + read

    def carried(self, query: Tensor) -> Tensor:
        """The rows that queries carry, [batch, rows, width]."""
        return query[:, self.shape.heads :].transpose(1, 2).flatten(2)[..., : self.shape.width]


class EagleLayer(nn.Module):
    """A matrix that joins embedding and state, then a decoder layer without an input norm."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        shape = config.shape
        self.fc = nn.Linear(2 * shape.width, shape.width)
        self.self_attn = StateAttention(shape, shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)

    def project(
        self, embeds: Tensor, states: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with the joined rows, keys and values, of inputs [batch, rows, width]."""
        return self.self_attn.project(self.fc(torch.cat((embeds, states), -1)), positions)

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from that of attention, which includes the residual rows."""
        out: Tensor = read + self.mlp(self.post_attention_layernorm(read))
        return out


class EagleHead(TiedBase):
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

    def best(self, outputs: Tensor, count: int) -> None:
        """None: the best tokens are computed from the logits."""

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(outputs)
