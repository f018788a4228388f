"""A described Llama of random numbers, made without transformers."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.llama import LlamaLayer, LlamaModel

WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, INNER, VOCAB = 24, 4, 2, 6, 40, 31
EPS = 1e-5


def noise(*shape: int, seed: int, scale: float = 0.3) -> Tensor:
    """Normal numbers, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def make_layer(
    seed: int = 0, window: int = 0, *, bias: bool = False, norms: bool = False
) -> LlamaLayer:
    """One decoder layer."""
    rows = (HEADS + 2 * KV_HEADS) * HEAD_WIDTH
    return LlamaLayer(
        norm=1 + noise(WIDTH, seed=seed + 1),
        qkv=noise(rows, WIDTH, seed=seed + 2),
        qkv_bias=noise(rows, seed=seed + 3) if bias else None,
        query_norm=1 + noise(HEAD_WIDTH, seed=seed + 4) if norms else None,
        key_norm=1 + noise(HEAD_WIDTH, seed=seed + 5) if norms else None,
        out=noise(WIDTH, HEADS * HEAD_WIDTH, seed=seed + 6),
        mlp_norm=1 + noise(WIDTH, seed=seed + 7),
        gate_up=noise(2 * INNER, WIDTH, seed=seed + 8),
        down=noise(WIDTH, INNER, seed=seed + 9),
        window=window,
    )


def make_model(*layers: LlamaLayer) -> LlamaModel:
    """A model of these layers, or of two plain ones."""
    return LlamaModel(
        width=WIDTH,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_width=HEAD_WIDTH,
        inner=INNER,
        vocab=VOCAB,
        eps=EPS,
        scale=HEAD_WIDTH**-0.5,
        rates=10_000.0 ** (-torch.arange(HEAD_WIDTH // 2) / (HEAD_WIDTH // 2)),
        amplitude=1.0,
        embedding=noise(VOCAB, WIDTH, seed=101, scale=1.0),
        layers=layers or (make_layer(10), make_layer(20)),
        norm=1 + noise(WIDTH, seed=102),
        head=noise(VOCAB, WIDTH, seed=103, scale=1.0),
    )


def on_device(model: LlamaModel, device: str) -> LlamaModel:
    """The same model with all tensors on this device."""
    layers = tuple(replace(layer, **tensors_of(layer, device)) for layer in model.layers)
    return replace(model, layers=layers, **tensors_of(model, device))


def tensors_of(part: LlamaModel | LlamaLayer, device: str) -> dict[str, Any]:
    """The tensors among the fields, moved to a device."""
    found = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: one.to(device) for name, one in found.items() if isinstance(one, Tensor)}
