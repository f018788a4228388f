"""The CTC drafter's head (arXiv 2412.00061): more slots than tokens, and a blank.

One attention layer fills several slots at once, as `parallel` does; each slot's distribution is
over the draft vocabulary and a blank. Repeated tokens between blanks are one token and blanks are
none, so that many fillings of the slots stand for the same text, and a text's probability is the
sum over all of them. A text's first token may thus lie in the first slot or a later one, and what
follows a token depends on which one it is.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.parallel import ParallelConfig, ParallelHead


@dataclass(frozen=True, slots=True)
class CtcConfig(ParallelConfig):
    """Sizes of a CTC head and of the target it was made for; `depth` is its number of slots."""

    heads: int = 4  # tokens that it was trained to write into the slots, >= 1


class CtcHead(ParallelHead):
    """Fused features in, log-probabilities of slots over the draft vocabulary and a blank out."""

    kind: ClassVar[str] = "ctc"
    config: CtcConfig

    def __init__(self, config: CtcConfig) -> None:
        super().__init__(config)
        if not 1 <= config.heads <= config.depth:
            raise SapwoodError(
                f"{config.heads} tokens do not fit into {config.depth} slots; "
                "there must be a slot for each, and one token at least"
            )
        self.config = config
        self.blank = nn.Parameter(torch.zeros(config.target_width))
        self.blank_bias = nn.Parameter(torch.zeros(()))

    def slots(self, outputs: Tensor) -> Tensor:
        """Log-probabilities [..., draft vocab + 1] of slots [..., width]; the blank is last."""
        normed = self.norm(outputs)
        blank = normed @ self.blank.to(normed.dtype) + self.blank_bias
        logits = torch.cat((self.output_logits(normed), blank[..., None]), -1)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
