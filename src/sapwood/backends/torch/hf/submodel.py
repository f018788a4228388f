"""Variants of a transformers model: without some sublayers, split in two, or rounded.

Sublayers are numbered as they are run: 2 i is the attention of layer i, 2 i + 1 its MLP. A skipped
sublayer is replaced by one that adds zero to the residual stream. Weights are shared.
"""

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import shallow_copy

ATTENTION, MLP = "self_attn", "mlp"


class SkippedSublayer(nn.Module):
    """Replaces a sublayer: adds zero to the residual stream."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Zeros in the shape of the sublayer's output."""
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.attention else zeros


def check_layered(model: Any) -> None:
    """Refuse a model that has no list of layers and a norm."""
    base = model.base_model
    if not all(isinstance(getattr(base, name, None), nn.Module) for name in ("layers", "norm")):
        raise SapwoodError(
            f"{type(model).__name__} is not built as layers and a norm, and cannot be run in part"
        )


def check_cut(layer: int, depth: int) -> None:
    """Refuse a split with no layers before or after it."""
    if not 1 <= layer < depth:
        raise SapwoodError(
            f"layer={layer} must be from 1 to {depth - 1} in a model of {depth} layers"
        )


def without(model: Any, sublayers: Collection[int]) -> Any:
    """The model without these sublayers, of the same class, with shared weights."""
    check_layered(model)
    layers = list(model.base_model.layers)
    for index, layer in enumerate(layers):
        gone = [
            name
            for name, number in ((ATTENTION, 2 * index), (MLP, 2 * index + 1))
            if number in sublayers
        ]
        if gone:
            layers[index] = thinned(layer, gone)
    return relayered(model, layers, 0, model.base_model.norm)


def thinned(layer: Any, gone: Collection[str]) -> Any:
    """A layer without these sublayers."""
    made = shallow_copy(layer)
    for name in gone:
        if not isinstance(getattr(layer, name, None), nn.Module):
            raise SapwoodError(
                f"{type(layer).__name__} has no {name}; its sublayers cannot be skipped"
            )
        setattr(made, name, SkippedSublayer(name == ATTENTION))
    return made


def halves(model: Any, layer: int) -> tuple[Any, Any]:
    """The layers before this one, without the output norm, and the rest, which takes states."""
    check_layered(model)
    layers = list(model.base_model.layers)
    check_cut(layer, len(layers))
    return relayered(model, layers[:layer], 0, nn.Identity()), relayered(
        model, layers[layer:], layer, model.base_model.norm
    )


def middle(model: Any, first: int, stop: int) -> Any:
    """Layers `first` to `stop`, with the output norm behind the last."""
    check_layered(model)
    layers = list(model.base_model.layers)
    norm = model.base_model.norm if stop == len(layers) else nn.Identity()
    return relayered(model, layers[first:stop], first, norm)


def relayered(model: Any, layers: list[Any], first: int, norm: nn.Module) -> Any:
    """The model with these layers instead of its own; `first` is the index of the first."""
    hook(model)
    made = shallow_copy(model)
    base = shallow_copy(model.base_model)
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    if kinds := getattr(text, "layer_types", None):
        text.layer_types = list(kinds[first : first + len(layers)])
    text.num_hidden_layers = len(layers)
    made.config = config
    base.config = text
    base.layers = nn.ModuleList(layers)
    base.norm = norm
    setattr(made, model.base_model_prefix, base)
    return made


@torch.inference_mode()
def hook(model: Any) -> None:
    """Install transformers' output hooks once: models with shared layers would add them twice."""
    if not getattr(model.base_model, "_output_capturing_hooks_installed", False):
        zero = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        model.base_model(input_ids=zero, output_hidden_states=True, use_cache=False)


@torch.inference_mode()
def on_grid(model: Any, bits: int) -> Any:
    """A copy of the model with layer weights rounded to so many bits; embeddings are shared."""
    tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    made = copy.deepcopy(model, {id(table): table for table in tables})
    for parameter in made.base_model.parameters():
        if parameter.dim() > 1 and all(parameter is not table for table in tables):
            parameter.data = coarse(parameter.data, bits).to(parameter.dtype)
    return made


def coarse(weight: Tensor, bits: int) -> Tensor:
    """Weights [..., outputs, inputs] rounded to so many bits per output, float32."""
    exact = weight.detach().float()
    levels = 2 ** (bits - 1) - 1
    steps = (exact.abs().amax(-1, keepdim=True) / levels).clamp(min=torch.finfo(torch.float32).tiny)
    rounded: Tensor = (exact / steps).round() * steps
    return rounded
