"""SmoothQuant: move the scale of activation channels into the weights before quantisation.

A row is quantised to 255 steps of its largest magnitude, so a few outlier channels cost all others
their precision. Dividing each channel of the MLP's input by its usual scale, and multiplying the
weights that read it, changes nothing but the rounding (arXiv 2211.10438). The division is free: it
goes into the norm before the layer.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.llama import LlamaLayer

SHARE = 0.3  # share of a channel's scale that moves to the weights, 0 to 1
TOKENS = 256  # of the calibration text
QUIET = 1e-4  # least scale of a channel, relative to the largest


def random_text(vocab: int) -> Tensor:
    """Tokens of the calibration text, [TOKENS]; random text shows the outliers too."""
    noise = torch.Generator().manual_seed(0)
    return torch.randint(vocab, (1, TOKENS), generator=noise)[0]


def rms_of(states: Tensor) -> Tensor:
    """RMS of each channel of an MLP's input [..., width], [width]."""
    return states.float().flatten(0, -2).square().mean(0).sqrt()


@torch.inference_mode()
def channel_rms(model: Any) -> list[Tensor]:
    """RMS of each channel of every MLP's input, [width]."""
    tokens = random_text(model.config.get_text_config().vocab_size)[None]
    measured: list[Tensor] = []

    def note(_: Any, inputs: tuple[Tensor, ...]) -> None:
        measured.append(rms_of(inputs[0]))

    hooks = [layer.mlp.register_forward_pre_hook(note) for layer in model.model.layers]
    try:
        model.base_model(input_ids=tokens.to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return measured


def smooth_layer(layer: LlamaLayer, rms: Tensor) -> LlamaLayer:
    """The layer with smoothed MLP inputs; one without a norm before it, or of experts, as it is."""
    if layer.extras is not None and (not layer.extras.pre_norms or layer.extras.router is not None):
        return layer
    weight = layer.gate_up.float()
    weight_rms = weight.square().mean(0).sqrt()
    rows, columns = ((part / part.max()).clamp(min=QUIET) for part in (rms, weight_rms))
    factors = rows**SHARE / columns ** (1 - SHARE)
    return replace(layer, mlp_norm=layer.mlp_norm.float() / factors, gate_up=weight * factors)
