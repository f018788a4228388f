"""A recurrent head: one small state follows the drafted tokens (ReDrafter, arXiv 2403.09919).

The state starts as the target's final state at position t. Each token updates it by a gated step;
the next token is predicted from this state and the target's final state at t. The paper's step is
SiLU(U state + W embedding); here a gate decides how much of the state it replaces.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import RMSNorm, linear
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Sizes of a recurrent head and of the target it was made for."""

    width: int  # of the state, the target's own
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    layer: int  # of the target, whose input is read: its number of layers means the final state
    blocks: int = 1  # residual blocks between the state and the output
    eps: float = 1e-5


class RecurrentHead(TiedBase):
    """A state and a token in, the next state and logits over the draft vocabulary out."""

    kind: ClassVar[str] = "recurrent"

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config.width, config.vocab, config.draft_vocab)
        self.config = config
        width = config.width
        self.begin_norm = RMSNorm(width, config.eps)
        self.state_norm = RMSNorm(width, config.eps)
        self.token_norm = RMSNorm(width, config.eps)
        self.gate = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.fuse = linear(2 * width, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(config.blocks))
        self.norm = RMSNorm(width, config.eps)

    @property
    def state_width(self) -> int:
        """Width of a state."""
        return self.config.width

    def begin(self, final: Tensor) -> Tensor:
        """The first state, from the target's final state [..., width]."""
        state: Tensor = self.begin_norm(final)
        return state

    def step(self, states: Tensor, embeds: Tensor) -> Tensor:
        """States after one more token, both [..., width]."""
        joined = torch.cat((self.state_norm(states), self.token_norm(embeds)), -1)
        keep = torch.sigmoid(self.gate(joined))
        return keep * states + (1 - keep) * F.silu(self.update(joined))

    def outputs(self, states: Tensor, first: Tensor) -> Tensor:
        """Input of `logits`, from states and their first state, both [..., width]."""
        found: Tensor = self.fuse(torch.cat((self.state_norm(states), first), -1))
        for block in self.blocks:
            found = found + F.silu(block(found))
        return found

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(self.norm(outputs))
