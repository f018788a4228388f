"""Gumiho's head (arXiv 2503.10135): two serial heads for the first tokens, parallel ones behind.

The serial heads are a small transformer that drafts as EAGLE does: row t joins the target's final
state at t with the token at t + 1 and predicts the next final state; a row of a drafted token joins
the predicted state of its parent. The parallel heads read the joined rows of the two tokens that
the serial heads have drafted, and each predicts the final state of one later place. Below a node of
depth two, all nodes of a depth share one distribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import LayerShape
from sapwood.heads.medusa import ResidualBlock
from sapwood.heads.text_layers import CausalLayer, JoinedState
from sapwood.heads.tied_base import TiedBase

SERIAL = 2  # tokens drafted one after the other


@dataclass(frozen=True, slots=True)
class GumihoConfig:
    """Sizes of a Gumiho head and of the target it was made for."""

    shape: LayerShape
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    heads: int = 6  # places in all: two serial ones and the parallel ones
    layers: int = 2  # of the serial heads
    blocks: int = 2  # residual blocks of each parallel head
    narrow: int = 192  # width of these blocks


class ParallelPlace(nn.Module):
    """A network over the joined rows of two drafted tokens; initially the second one's state."""

    def __init__(self, config: GumihoConfig) -> None:
        super().__init__()
        width = config.shape.width
        self.input_rows = nn.Linear(SERIAL * width, config.narrow)
        self.blocks = nn.ModuleList(ResidualBlock(config.narrow) for _ in range(config.blocks))
        self.leave = nn.Linear(config.narrow, width)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """The predicted state [..., width] from the joined rows [..., 2, width]."""
        x = F.silu(self.input_rows(rows.flatten(-2)))
        for block in self.blocks:
            x = block(x)
        out: Tensor = rows[..., -1, :] + self.leave(x)
        return out


class GumihoHead(TiedBase):
    """Final states of the text and two drafted tokens in, later final states out."""

    kind: ClassVar[str] = "gumiho"

    def __init__(self, config: GumihoConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        self.join = JoinedState(config.shape.width)
        self.layers = nn.ModuleList(CausalLayer(config.shape) for _ in range(config.layers))
        self.places = nn.ModuleList(ParallelPlace(config) for _ in range(config.heads - SERIAL))

    def input_rows(self, number: int, embeds: Tensor, states: Tensor) -> Tensor:
        """Input rows of a layer: the first joins states with embeddings."""
        if number:
            return states
        rows: Tensor = self.join(embeds, states)
        return rows

    def later(self, embeds: Tensor, states: Tensor) -> Tensor:
        """States of the parallel places [places, ..., width], from the last two drafted tokens.

        Both inputs are [..., 2, width]: embeddings of the tokens, and the states they were drafted
        from.
        """
        rows = self.join(embeds, states)
        return torch.stack([place(rows) for place in self.places])

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(outputs)
