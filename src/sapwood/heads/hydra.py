"""Hydra's heads (arXiv 2402.05109): as Medusa's, but each reads the tokens drafted before its own.

Head k at position t reads the target's final state there and the tokens at t + 1 to t + 1 + k, and
predicts the token at t + 2 + k. Four layers as in the paper, narrow inside.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.medusa import ResidualBlock
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class HydraConfig:
    """Sizes of Hydra's heads and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    heads: int = 4
    blocks: int = 2  # of each head, between the layer into the inner width and the one out of it
    inner: int = 288  # width of the blocks
    draft_vocab: int = 0  # tokens the heads can propose; 0: all


class HydraPosition(nn.Module):
    """A network over one final state and a few embeddings; initially the final state itself."""

    def __init__(self, config: HydraConfig, tokens: int) -> None:
        super().__init__()
        self.enter = nn.Linear((1 + tokens) * config.width, config.inner)
        self.blocks = nn.ModuleList(ResidualBlock(config.inner) for _ in range(config.blocks))
        self.leave = nn.Linear(config.inner, config.width)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, final: Tensor, embeds: Tensor) -> Tensor:
        """Input of the output matrix, from [..., width] and [..., tokens, width]."""
        joined = torch.cat((final[..., None, :], embeds), -2)
        # states are many times larger than embeddings
        normed = F.rms_norm(joined, joined.shape[-1:])
        x = F.silu(self.enter(normed.flatten(-2)))
        for block in self.blocks:
            x = block(x)
        out: Tensor = final + self.leave(x)
        return out


class HydraHeads(TiedBase):
    """The final state of a position and the tokens after it in, logits of the next one out."""

    kind: ClassVar[str] = "hydra"

    def __init__(self, config: HydraConfig) -> None:
        super().__init__(config.width, config.vocab, config.draft_vocab)
        self.config = config
        self.heads = nn.ModuleList(
            HydraPosition(config, number + 1) for number in range(config.heads)
        )

    def states(self, final: Tensor, tokens: Tensor) -> Tensor:
        """Output states of the head for this many tokens, from states [..., width] and tokens."""
        state: Tensor = self.heads[tokens.shape[-1] - 1](final, self.embed(tokens))
        return state

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(states)
