"""A head that drafts several tokens in one call: mask rows stand for tokens not drafted yet.

ParallelSpec (arXiv 2410.05589) and P-EAGLE. The first row pairs the target's hidden states at t
with the token at t + 1, as in EAGLE-3; the rows behind it pair learned vectors. Each sees the text
and the rows before it, and predicts one token more. The predictions are marginal: none depends on
the tokens drafted before it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.eagle3 import FEATURES, Eagle3Config, Eagle3Layer
from sapwood.heads.layers import RMSNorm, linear
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class ParallelConfig(Eagle3Config):
    """Sizes of a parallel head and of the target it was made for."""

    depth: int = 6  # predicted positions of one call, >= 1
    levelled: bool = True  # a norm is applied to each input feature


class ParallelHead(TiedBase):
    """Fused features in, logits of several positions over the draft vocabulary out."""

    kind: ClassVar[str] = "parallel"

    def __init__(self, config: ParallelConfig) -> None:
        super().__init__(config.target_width, config.vocab, config.draft_vocab)
        if config.depth < 1:
            raise SapwoodError(
                f"a parallel head of depth {config.depth} drafts nothing; it must be at least 1"
            )
        self.config = config
        width = config.shape.width
        norms = FEATURES if config.levelled else 0
        self.feature_norm = nn.ModuleList(
            RMSNorm(config.target_width, config.shape.eps) for _ in range(norms)
        )
        self.fc = linear(FEATURES * config.target_width, width)
        self.midlayer = Eagle3Layer(config)
        self.norm = RMSNorm(width, config.shape.eps)
        # states and embeddings
        self.masks = nn.Parameter(0.1 * torch.randn(2, config.depth - 1, width))

    def begin(self, features: Tensor) -> Tensor:
        """The state of the first row from the target's features [..., 3 * target width]."""
        if self.config.levelled:
            parts = zip(self.feature_norm, features.tensor_split(FEATURES, -1), strict=True)
            features = torch.cat([norm(part) for norm, part in parts], -1)
        states: Tensor = self.fc(features)
        return states

    def best(self, outputs: Tensor, count: int) -> None:
        """None: the best tokens are computed from the logits."""

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary."""
        return self.output_logits(self.norm(outputs))
