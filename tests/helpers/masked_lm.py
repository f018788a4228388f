"""A small masked language model, a bidirectional transformer that fills masks, and its training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sapwood.core.array_types import FloatArray
from sapwood.core.diffusion import MASK, Text


@dataclass(frozen=True, slots=True)
class MaskedLmConfig:
    """Sizes of a masked language model."""

    vocab: int
    width: int = 32
    layers: int = 2
    heads: int = 4
    places: int = 64  # longest text


class MaskedLm(nn.Module):
    """Embeddings of tokens and places, encoder layers, and an output head."""

    def __init__(self, config: MaskedLmConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab + 1, config.width)  # the last row is the mask
        self.places = nn.Embedding(config.places, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.output = nn.Linear(config.width, config.vocab)

    @property
    def vocab(self) -> int:
        """Tokens in the vocabulary, the mask not counted."""
        return self.config.vocab

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, places, vocab] of texts [batch, places] in which masks are -1."""
        known = torch.where(tokens == MASK, self.config.vocab, tokens)
        where = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.output(self.layers(self.words(known) + self.places(where)))
        return logits

    @torch.inference_mode()
    def score(self, texts: Sequence[Text]) -> list[FloatArray]:
        """Probs of every place of each text [places, vocab], all texts in one pass."""
        probs = self(torch.tensor(texts)).softmax(-1).double().numpy()
        return [np.ascontiguousarray(rows) for rows in probs]


def train_masked_lm(
    texts: Tensor, config: MaskedLmConfig, *, steps: int = 200, rate: float = 3e-3, seed: int = 0
) -> MaskedLm:
    """A model trained on texts [texts, places]."""
    torch.manual_seed(seed)
    model = MaskedLm(config)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(steps):
        batch = texts[torch.randint(len(texts), (32,))]
        optimizer.zero_grad()
        denoising_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def denoising_loss(model: MaskedLm, batch: Tensor) -> Tensor:
    """Cross entropy of masked places, divided by each text's share of masks: the diffusion bound."""
    share = torch.rand(len(batch), 1).clamp(min=0.05)
    hidden = torch.rand(batch.shape) < share
    logits = model(batch.masked_fill(hidden, MASK))
    losses = F.cross_entropy(logits.flatten(0, 1), batch.flatten(), reduction="none")
    weights = hidden / share
    return (losses.view_as(batch) * weights).sum() / batch.numel()
