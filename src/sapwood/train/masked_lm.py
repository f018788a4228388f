"""Training of a small masked language model: fill a random share of every text's places.

The loss of a text is divided by its share of masks, the bound of masked diffusion models.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.diffusion import MASK
from sapwood.heads.masked_lm import MaskedLm, MaskedLmConfig


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
    """Cross entropy of masked places, each text's by its share of masks."""
    share = torch.rand(len(batch), 1).clamp(min=0.05)
    hidden = torch.rand(batch.shape) < share
    logits = model(batch.masked_fill(hidden, MASK))
    losses = F.cross_entropy(logits.flatten(0, 1), batch.flatten(), reduction="none")
    weights = hidden / share
    return (losses.view_as(batch) * weights).sum() / batch.numel()
