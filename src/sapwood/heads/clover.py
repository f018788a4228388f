"""Clover's heads (arXiv 2405.00263): a block over the text, then a state that follows the tokens.

The augmenting block is one decoder layer over the target's final states. Its output at t is the
first state; each token from t + 1 on changes it by the attention decoder (the regressive
connection), and a head for each depth predicts the next token from it. Attention from one state to
one token has a single key, for which a softmax is always one: the weight is the cosine of query and
key instead, one for each attention head, as in the authors' code of Clover-2.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.heads.layers import LayerShape, RMSNorm, linear
from sapwood.heads.medusa import ResidualBlock
from sapwood.heads.text_layers import CausalLayer
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class CloverConfig:
    """Sizes of Clover's heads and of the target they were made for."""

    shape: LayerShape
    vocab: int  # of the target
    draft_vocab: int  # tokens the heads can propose
    heads: int = 4


class AttentionDecoder(nn.Module):
    """Adds to a state what its attention heads take from the embedding of a token."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.head_width
        self.state_norm = RMSNorm(shape.width, shape.eps)
        self.token_norm = RMSNorm(shape.width, shape.eps)
        self.query = linear(shape.width, inner)
        self.key = linear(shape.width, inner)
        self.value = linear(shape.width, inner)
        self.out = linear(inner, shape.width)

    def forward(self, states: Tensor, embeds: Tensor) -> Tensor:
        """The states [..., width] after one more token each."""
        token = self.token_norm(embeds)
        split = (*states.shape[:-1], self.shape.heads, self.shape.head_width)
        query = self.query(self.state_norm(states)).view(split)
        key = self.key(token).view(split)
        weight = F.cosine_similarity(query, key, dim=-1)[..., None]
        read = (weight * self.value(token).view(split)).flatten(-2)
        found: Tensor = states + self.out(read)
        return found


class CloverHeads(TiedBase):
    """Final states and the drafted tokens in, logits of the next one out."""

    kind: ClassVar[str] = "clover"

    def __init__(self, config: CloverConfig) -> None:
        super().__init__(config.shape.width, config.vocab, config.draft_vocab)
        self.config = config
        self.layers = nn.ModuleList([CausalLayer(config.shape)])
        self.decoder = AttentionDecoder(config.shape)
        self.heads = nn.ModuleList(ResidualBlock(config.shape.width) for _ in range(config.heads))

    def input_rows(self, number: int, embeds: Tensor, states: Tensor) -> Tensor:
        """Input rows of a layer: the final states as they are."""
        return states

    def step(self, states: Tensor, embeds: Tensor) -> Tensor:
        """States after one more token, both [..., width]."""
        found: Tensor = self.decoder(states, embeds)
        return found

    def outputs(self, states: Tensor, depth: int) -> Tensor:
        """Output states [..., width] of the head that proposes children of nodes at this depth."""
        found: Tensor = self.heads[depth](states)
        return found

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(outputs)
