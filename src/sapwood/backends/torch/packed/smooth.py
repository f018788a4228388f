"""Even out the channels of the MLP's input before they are rounded.

A row is rounded to 255 steps of its largest magnitude, so a few loud channels cost all others their
precision. Dividing each channel by how loud it usually is, and multiplying the weights that read it by
as much, changes nothing but the rounding (SmoothQuant, arXiv 2211.10438). The division is free: it goes
into the norm before the layer.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.llama import Layer

SHARE = 0.3  # how much of a channel's loudness moves from rows to weights, 0 to 1
TOKENS = 256  # of the text that is listened to
QUIET = 1e-4  # least loudness, of the loudest channel


@torch.inference_mode()
def listen(model: Any) -> list[Tensor]:
    """How loud each channel of every MLP's input is, [width]; loud channels are loud in any text, random ones too."""
    noise = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.get_text_config().vocab_size, (1, TOKENS), generator=noise)
    heard: list[Tensor] = []

    def note(_: Any, inputs: tuple[Tensor, ...]) -> None:
        heard.append(inputs[0].float().flatten(0, -2).square().mean(0).sqrt())

    hooks = [layer.mlp.register_forward_pre_hook(note) for layer in model.model.layers]
    try:
        model.base_model(input_ids=tokens.to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return heard


def even(layer: Layer, loudness: Tensor) -> Layer:
    """The same layer with even channels."""
    weight = layer.gate_up.float()
    reach = weight.square().mean(0).sqrt()
    loud, wide = ((part / part.max()).clamp(min=QUIET) for part in (loudness, reach))
    factors = loud**SHARE / wide ** (1 - SHARE)
    return replace(layer, mlp_norm=layer.mlp_norm.float() / factors, gate_up=weight * factors)
