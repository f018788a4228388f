"""Cerberus' heads (arXiv 2410.13344): as Medusa's, but each block also reads the head before.

Block l of head k reads what the blocks before it made in its own head and in head k - 1, side by
side; before the first head stands the target's final state. Blocks of one level depend on the
level above alone, so that all heads run together, level by level, without reading drafted tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class CerberusConfig:
    """Sizes of Cerberus' heads and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    heads: int = 5
    blocks: int = 2  # of each head
    draft_vocab: int = 0  # tokens the heads can propose; 0: all


class PairBlock(nn.Module):
    """x + SiLU(W [x; before] + b), initially the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """The output, as wide as x."""
        return x + F.silu(self.linear(torch.cat((x, before), -1)))


class CerberusHeads(TiedBase):
    """The final state of one position in, logits of each of the next positions out."""

    kind: ClassVar[str] = "cerberus"

    def __init__(self, config: CerberusConfig) -> None:
        super().__init__(config.width, config.vocab, config.draft_vocab)
        self.config = config
        self.levels = nn.ModuleList(
            nn.ModuleList(PairBlock(config.width) for _ in range(config.heads))
            for _ in range(config.blocks)
        )

    def states(self, final: Tensor) -> Tensor:
        """Output states of each head for final states [..., width]; [heads, ..., width]."""
        found = [final] * self.config.heads
        for level in self.levels:
            before = [final, *found[:-1]]
            assert isinstance(level, nn.ModuleList)
            found = [block(x, up) for block, x, up in zip(level, found, before, strict=True)]
        return torch.stack(found)

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary of `states`, [heads, ..., draft vocab]."""
        return self.output_logits(states)
