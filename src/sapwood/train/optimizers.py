"""Two optimizers for one head: Muon for inner matrices, AdamW for the rest."""

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

# matrices whose rows or columns stand for tokens or layers of the target
OUTER = ("fc.", "lm_head.", "embed")


def optimizers(
    head: nn.Module, rate: float, matrix_rate: float, decay: float = 0.01
) -> list[Optimizer]:
    """The optimizers of a head; learning rates are the peaks of the schedule."""
    named = [(name, weight) for name, weight in head.named_parameters() if weight.requires_grad]
    inner = [
        weight
        for name, weight in named
        if weight.ndim == 2 and not any(part in name for part in OUTER)
    ]
    chosen = {id(weight) for weight in inner}
    outer = [weight for _, weight in named if id(weight) not in chosen]
    fused = all(weight.is_cuda for weight in outer)
    made: list[Optimizer] = []
    if inner:
        made.append(Muon(inner, lr=matrix_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    if outer:
        made.append(AdamW(outer, lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=fused))
    return made
