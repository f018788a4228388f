"""Look-ahead embeddings (PaSS, arXiv 2311.13581): rows of the target that stand for later tokens.

Row i behind the last token of a text has a learned embedding instead of a token's, and predicts the
token i places further. The layers and the output head are the target's own and stay as they are.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import shallow_copy
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class MaskRowsConfig:
    """Sizes of look-ahead embeddings and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    rows: int = 4  # tokens predicted beyond the next, >= 1


class MaskRowsHead(TiedBase):
    """Embeddings of the rows behind a text, in order."""

    kind: ClassVar[str] = "mask-rows"

    def __init__(self, config: MaskRowsConfig) -> None:
        super().__init__(config.width, config.vocab, 0)
        if config.rows < 1:
            raise SapwoodError(f"{config.rows} look-ahead rows predict nothing; use at least 1")
        self.config = config
        self.embeds = nn.Parameter(torch.zeros(config.rows, config.width))


class RowHead(Protocol):
    """A head with embeddings of rows."""

    @property
    def vocab(self) -> int:
        """Tokens of the target; ids of rows begin here."""

    @property
    def embeds(self) -> Tensor:
        """Embeddings, [rows, width]."""


class MaskEmbedding(nn.Module):
    """The target's embedding, in which ids from its vocabulary's size on are look-ahead rows."""

    def __init__(self, table: nn.Module, head: RowHead) -> None:
        super().__init__()
        self.table = table
        self.vocab = head.vocab
        self.embeds = head.embeds.detach()

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., width] of tokens and look-ahead rows."""
        row = (tokens - self.vocab).clamp(min=0)
        words: Tensor = self.table(tokens.clamp(max=self.vocab - 1))
        ahead = F.embedding(row, self.embeds.to(words.dtype))
        return torch.where((tokens >= self.vocab)[..., None], ahead, words)


def mask_rows_model(model: Any, head: MaskRowsHead) -> Any:
    """The same model, with shared weights, whose embedding knows the look-ahead rows too."""
    made = shallow_copy(model)
    base = shallow_copy(model.base_model)
    setattr(made, model.base_model_prefix, base)
    made.set_input_embeddings(MaskEmbedding(model.get_input_embeddings(), head))
    return made
