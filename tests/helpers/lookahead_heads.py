"""Heads with look-ahead rows for tiny models, with random weights."""

from typing import Any

import torch

from sapwood.heads.gated_lora import linear_layers
from sapwood.heads.gated_masks import GatedMasksConfig, GatedMasksHead
from sapwood.heads.streams import StreamsConfig, StreamsHead


def gated_masks(model: Any, rows: int = 3, rank: int = 2, salt: int = 4) -> GatedMasksHead:
    """Mask tokens, adapters and a sampler for a tiny model."""
    torch.manual_seed(salt)
    layers = linear_layers(model)
    config = GatedMasksConfig(
        model.config.hidden_size,
        model.config.vocab_size,
        rows,
        rank,
        tuple(layer.in_features for layer in layers),
        tuple(layer.out_features for layer in layers),
    )
    head = GatedMasksHead(config)
    for name, weight in head.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)
    return head


def streams(model: Any, rows: int = 3, rank: int = 2, salt: int = 4) -> StreamsHead:
    """Streams in the second of a tiny model's two layers."""
    torch.manual_seed(salt)
    layers = linear_layers(model, 1)
    config = StreamsConfig(
        model.config.hidden_size,
        model.config.vocab_size,
        rows,
        rank,
        1,
        tuple(layer.in_features for layer in layers),
        tuple(layer.out_features for layer in layers),
    )
    head = StreamsHead(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return head
