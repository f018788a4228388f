"""OWL's drafter (arXiv 2510.07535): an LSTM that begins from the target's last state alone.

No row of the text but the last is read, so that drafts do not depend on how long the text is. The
paper also gives the target a special token behind the text, whose state says more than that of the
last token; a backend here scores tokens of the vocabulary alone, so the last token's is read.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.heads.layers import RMSNorm, linear
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class OwlConfig:
    """Sizes of OWL's drafter and of the target it was made for."""

    width: int  # of the target, and of the LSTM
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    layer: int  # number of the target's layers: its final state is read
    eps: float = 1e-5


class OwlHead(TiedBase):
    """A state of the LSTM and a token in, the next state and logits out."""

    kind: ClassVar[str] = "owl"

    def __init__(self, config: OwlConfig) -> None:
        super().__init__(config.width, config.vocab, config.draft_vocab)
        self.config = config
        width = config.width
        self.begin_norm = RMSNorm(width, config.eps)
        self.token_norm = RMSNorm(width, config.eps)
        self.gates = nn.Linear(2 * width, 4 * width)  # input, forget, cell and output
        self.leave = linear(width, width)
        self.norm = RMSNorm(width, config.eps)

    @property
    def state_width(self) -> int:
        """Width of a state: the LSTM's output and its cell."""
        return 2 * self.config.width

    def begin(self, final: Tensor) -> Tensor:
        """The first state [..., 2 * width]: the target's final state, and an empty cell."""
        first = self.begin_norm(final)
        return torch.cat((first, torch.zeros_like(first)), -1)

    def step(self, states: Tensor, embeds: Tensor) -> Tensor:
        """States after one more token, from states [..., 2 * width] and embeddings."""
        hidden, cell = states.chunk(2, -1)
        gates = self.gates(torch.cat((hidden, self.token_norm(embeds)), -1))
        enter, keep, fresh, leave = gates.chunk(4, -1)
        cell = keep.sigmoid() * cell + enter.sigmoid() * fresh.tanh()
        return torch.cat((leave.sigmoid() * cell.tanh(), cell), -1)

    def outputs(self, states: Tensor, first: Tensor) -> Tensor:
        """Input of `logits`, [..., width]; the first state counts by what the LSTM kept of it."""
        found: Tensor = self.leave(states[..., : self.config.width])
        return found

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(self.norm(outputs))
