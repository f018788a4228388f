"""Mask tokens with gated adapters and a sampler head ("Your LLM Knows the Future", 2507.11851).

Mask row i behind a token stands for the token i places further. Adapters in the target's linear
layers act on mask rows alone. The sampler head reads a mask row's state and the token before the
one that it predicts, so that drafted tokens fit together.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.core.lookahead import LookaheadModel, RowGate
from sapwood.errors import SapwoodError
from sapwood.heads.gated_lora import GatedLora, shared_copy
from sapwood.heads.mask_rows import MaskEmbedding
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class GatedMasksConfig:
    """Sizes of mask tokens, adapters and sampler, and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    rows: int  # mask tokens, >= 1
    rank: int  # of the adapters
    inputs: tuple[int, ...]  # of the target's linear layers, in order
    outputs: tuple[int, ...]


class SamplerBlock(nn.Module):
    """A linear layer, SiLU and a norm."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """States [..., width]."""
        found: Tensor = self.norm(F.silu(self.linear(x)))
        return found


class GatedMasksHead(TiedBase):
    """Mask embeddings, gated adapters and the sampler head."""

    kind: ClassVar[str] = "gated-masks"

    def __init__(self, config: GatedMasksConfig) -> None:
        super().__init__(config.width, config.vocab, 0)
        if config.rows < 1:
            raise SapwoodError(f"{config.rows} mask tokens predict nothing; use at least 1")
        self.config = config
        self.embeds = nn.Parameter(torch.zeros(config.rows, config.width))
        self.adapter = GatedLora(config.inputs, config.outputs, config.rank)
        self.sampler = nn.Sequential(
            SamplerBlock(2 * config.width, config.width), SamplerBlock(config.width, config.width)
        )

    def sampled(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Input of the output head [..., width] from mask states and the tokens before theirs."""
        joined = torch.cat((states.to(self.embeds.dtype), self.embed(tokens)), -1)
        found: Tensor = self.sampler(joined)
        return found

    def lookahead(self, model: Any) -> LookaheadModel:
        """The target with mask tokens in its embedding and adapters for their rows."""
        made = shared_copy(model)
        gate = RowGate()
        self.adapter.install(made, gate)
        made.set_input_embeddings(MaskEmbedding(made.get_input_embeddings(), self))
        return LookaheadModel(made, gate)
