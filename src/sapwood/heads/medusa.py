"""Medusa's heads (arXiv 2401.10774): each predicts one position, from the final state alone.

Head k at position t predicts the token at t + 2 + k; the token at t + 1 is the target's own. The
heads are independent of each other, so every node of a level has the same children.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import linear
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Sizes of Medusa's heads and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    heads: int = 5
    blocks: int = 1  # of each head
    own_head: bool = False  # each head has its own output matrix instead of the target's
    draft_vocab: int = 0  # tokens the heads can propose; 0: all


class ResidualBlock(nn.Module):
    """x + SiLU(Wx + b), initially the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The output, as wide as the input."""
        return x + F.silu(self.linear(x))


class MedusaPosition(nn.Module):
    """The blocks of one head, and its output matrix if it has one."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(config.width) for _ in range(config.blocks))
        if config.own_head:
            self.lm_head = linear(config.width, config.draft_vocab or config.vocab)

    def forward(self, final: Tensor) -> Tensor:
        """Input of the output matrix, [..., width]."""
        for block in self.blocks:
            final = block(final)
        return final


class MedusaHeads(TiedBase):
    """The final state of one position in, logits of each of the next positions out."""

    kind: ClassVar[str] = "medusa"

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config.width, config.vocab, config.draft_vocab)
        self.config = config
        self.heads = nn.ModuleList(MedusaPosition(config) for _ in range(config.heads))

    def states(self, final: Tensor) -> Tensor:
        """Output states of each head for final states [..., width]; [heads, ..., width]."""
        return torch.stack([head(final) for head in self.heads])

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary of `states`, [heads, ..., draft vocab]."""
        if self.config.own_head:
            return torch.stack(
                [state @ self.rows(number).t() for number, state in enumerate(states)]
            )
        return self.output_logits(states)

    def rows(self, number: int) -> Tensor:
        """Output matrix of one head, [draft vocab, width]."""
        return (
            self.get_parameter(f"heads.{number}.lm_head.weight")
            if self.config.own_head
            else self.output
        )
