"""Falcon's head (arXiv 2412.12639): two tokens a call, from an LSTM and one decoder layer.

Row t joins the target's final state at t with the token at t + 1, follows the rows before it by a
small LSTM, and predicts the final state at t + 2. Two rows that lie side by side are a block and
see each other (the relaxed causal mask), so that one call predicts two states: the first row knows
all tokens before its own, the second lacks one. The target's output head turns states into tokens.

The published code leaves the LSTM's axes at their defaults, where it would run over the texts of a
batch; here it runs over the rows of a text, as the paper says.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm
from sapwood.heads.tied_base import TiedBase

BLOCK = 2  # rows that predict together
LAYERS = 2  # of the LSTM

Carry = tuple[Tensor, Tensor]  # state of the LSTM behind a row, [LAYERS, batch, width] each


@dataclass(frozen=True, slots=True)
class FalconConfig:
    """Sizes of Falcon's head and of the target it was made for."""

    shape: LayerShape
    target_width: int  # the head's own: it predicts the target's states
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose; 0: all
    layer: int  # number of the target's layers: its final states are read
    context: int = 8192


class FalconHead(TiedBase):
    """Final states and tokens in, final states two places ahead out."""

    kind: ClassVar[str] = "falcon"

    def __init__(self, config: FalconConfig) -> None:
        super().__init__(config.target_width, config.vocab, config.draft_vocab)
        self.config = config
        shape = config.shape
        self.lstm = nn.LSTM(2 * shape.width, shape.width, num_layers=LAYERS, batch_first=True)
        self.self_attn = Attention(shape, shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)

    def input_rows(
        self, embeds: Tensor, states: Tensor, carry: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Rows [batch, rows, width] of embeddings and states, and the LSTM's state behind them."""
        joined = torch.cat((embeds, states), -1)
        # on CUDA autocast runs an LSTM in float16, whatever its own type is
        with torch.autocast(joined.device.type, enabled=False):
            rows, behind = self.lstm(joined.to(next(self.lstm.parameters()).dtype), carry)
        return rows, behind

    def project(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows at positions [batch, rows]."""
        return self.self_attn.project(rows, positions)

    def finish(self, rows: Tensor, read: Tensor) -> Tensor:
        """Predicted states from rows and the output of attention [batch, rows, width]."""
        middle = rows + read
        out: Tensor = middle + self.mlp(self.post_attention_layernorm(middle))
        return out

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(states)
