"""Amphista's heads (arXiv 2406.13170): Medusa's places that read each other in both directions.

Two staged adaptation layers carry the target's final states of the text over to drafting; each
joins its rows with the embedding of the token that follows. The first half of the heads begins from
the first stage, the others from the second. Their states, each with a learned place, go through one
attention without a mask (the auto-embedding block), and every head predicts its own place from the
result. All nodes of a depth share one distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.heads.layers import Attention, LayerShape, RMSNorm
from sapwood.heads.medusa import ResidualBlock
from sapwood.heads.text_layers import CausalLayer, JoinedState
from sapwood.heads.tied_base import TiedBase

STAGES = 2


@dataclass(frozen=True, slots=True)
class AmphistaConfig:
    """Sizes of Amphista's heads and of the target they were made for."""

    shape: LayerShape
    vocab: int  # of the target
    draft_vocab: int  # tokens the heads can propose
    heads: int = 4


class AmphistaHeads(TiedBase):
    """Final states of the text in, logits of each of the next positions out."""

    kind: ClassVar[str] = "amphista"

    def __init__(self, config: AmphistaConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        width = config.shape.width
        self.joins = nn.ModuleList(JoinedState(width) for _ in range(STAGES))
        self.layers = nn.ModuleList(CausalLayer(config.shape) for _ in range(STAGES))
        self.heads = nn.ModuleList(ResidualBlock(width) for _ in range(config.heads))
        self.places = nn.Parameter(torch.zeros(config.heads, width))
        self.place_norm = RMSNorm(width, config.shape.eps)
        self.attention = Attention(config.shape, width)

    def input_rows(self, number: int, embeds: Tensor, states: Tensor) -> Tensor:
        """Input rows of a stage: states joined with the embeddings of the tokens that follow."""
        rows: Tensor = self.joins[number](embeds, states)
        return rows

    def states(self, stages: Sequence[Tensor]) -> Tensor:
        """Output states [heads, rows, width] from the outputs of both stages, [rows, width]."""
        half = (self.config.heads + 1) // 2
        begun = [head(stages[int(at >= half)]) for at, head in enumerate(self.heads)]
        x = torch.stack(begun, 1) + self.places.to(begun[0].dtype)  # [rows, heads, width]
        still = torch.zeros(x.shape[:2], device=x.device)  # learned places instead of rotary ones
        query, key, value = self.attention.project(self.place_norm(x), still)
        return (x + self.attention.attend(query, key, value, None)).transpose(0, 1)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(outputs)
