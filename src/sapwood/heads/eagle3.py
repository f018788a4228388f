"""The EAGLE-3 head (arXiv 2503.01840): one decoder layer over fused features of the target.

Row t pairs the target's hidden states at position t with the token at t + 1, and predicts the token
at t + 2. The first step reads three layers of the target; later steps read the head's own output.
Tensors carry the names that EAGLE, SGLang and vLLM expect.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.heads.layers import Attention, GatedMLP, LayerShape, RMSNorm, head_logits, linear

FEATURES = 3  # layers of the target that are fused: low, middle, high


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes of an EAGLE-3 head and of the target it was made for."""

    shape: LayerShape
    target_width: int
    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    features: tuple[int, int, int]  # target layers whose inputs are read
    context: int = 8192
    # the residual stream takes the feature before (False) or after its norm
    norm_before_residual: bool = False


class Eagle3Layer(nn.Module):
    """Decoder layer: attention over [embedding; feature], gated MLP, residuals on the feature."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        shape = config.shape
        self.after = config.norm_before_residual
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape)

    def project(
        self, embeds: Tensor, states: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of embeddings paired with states, both [batch, rows, width]."""
        joined = torch.cat((self.input_layernorm(embeds), self.hidden_norm(states)), -1)
        return self.self_attn.project(joined, positions)

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from its input states and attention's output [batch, rows, width]."""
        middle = (self.hidden_norm(states) if self.after else states) + read
        out: Tensor = middle + self.mlp(self.post_attention_layernorm(middle))
        return out


class Eagle3Head(nn.Module):
    """Fused features in, logits over the draft vocabulary out."""

    kind: ClassVar[str] = "eagle3"

    d2t: Tensor  # [draft vocab] int64: target id minus draft id
    t2d: Tensor  # [vocab] bool: in the draft vocabulary

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        width = config.shape.width
        self.fc = linear(FEATURES * config.target_width, width)
        self.midlayer = Eagle3Layer(config)
        self.norm = RMSNorm(width, config.shape.eps)
        self.lm_head = linear(width, config.draft_vocab)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.ones(config.vocab, dtype=torch.bool))

    def use_vocabulary(self, tokens: Tensor) -> None:
        """Propose these target tokens only, [draft vocab] ascending."""
        self.d2t.copy_(tokens - torch.arange(len(tokens), device=tokens.device))
        self.t2d.zero_()
        self.t2d[tokens] = True

    @property
    def vocabulary(self) -> Tensor:
        """Target id of each draft token, [draft vocab]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def begin(self, features: Tensor) -> Tensor:
        """States of the first step from the target's features [..., 3 * target width]."""
        states: Tensor = self.fc(features)
        return states

    def tree_builder(self, embedding: Tensor) -> None:
        """None: only a network's own form of a head has a builder of whole trees."""

    def best(self, outputs: Tensor, count: int) -> None:
        """None: the best tokens are computed from the logits."""

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return head_logits(self.lm_head, self.norm(outputs))
