"""Heads with layers over the text, with random weights for the tiny models, and their references."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sapwood.drafters.heads.amphista import Amphista
from sapwood.drafters.heads.clover import Clover
from sapwood.drafters.heads.gumiho import Gumiho
from sapwood.heads.amphista import AmphistaConfig, AmphistaHeads
from sapwood.heads.clover import CloverConfig, CloverHeads
from sapwood.heads.gumiho import GumihoConfig, GumihoHead
from sapwood.heads.layers import LayerShape
from sapwood.train import amphista, clover, gumiho
from sapwood.train.batches import TrainBatch

DRAFTERS: dict[str, Any] = {"clover": Clover, "amphista": Amphista, "gumiho": Gumiho}
Steps = Callable[[Any, TrainBatch], list[Tensor]]
# outputs of every head at every position of whole texts, as training computes them
STEPS: dict[str, Steps] = {
    "clover": clover.follow,
    "amphista": amphista.places_of,
    "gumiho": gumiho.unroll,
}
MADE: dict[str, Any] = {
    "clover": (CloverHeads, CloverConfig),
    "amphista": (AmphistaHeads, AmphistaConfig),
    "gumiho": (GumihoHead, GumihoConfig),
}


def make_head(
    kind: str, vocab: int = 61, draft_vocab: int = 40, width: int = 32, **changes: Any
) -> Any:
    """A head with random weights for the tiny models; its vocabulary leaves some tokens out."""
    torch.manual_seed(1)
    shape = LayerShape(width=width, heads=4, kv_heads=2, head_width=8, inner=24)
    made, config = MADE[kind]
    head = made(
        config(shape, vocab, draft_vocab, **{"heads": 4 if kind == "gumiho" else 3, **changes})
    )
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    torch.manual_seed(2)  # the same tokens for every kind
    head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


@torch.inference_mode()
def law_of(
    head: Any, model: Any, text: Sequence[int], path: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Output and law after a text, its root last, and a drafted path, from whole texts."""
    head.attach(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    tokens = torch.tensor([[*text, *path]])
    final = model.base_model(tokens).last_hidden_state
    batch = TrainBatch(tokens, torch.tensor([0]), torch.tensor([0]), final[..., :0], final)
    output = STEPS[head.kind](head, batch)[len(path)][0, len(text) - 2]
    return output, head.logits(output[None])[0].softmax(0)
