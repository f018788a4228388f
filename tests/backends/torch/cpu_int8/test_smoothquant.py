"""Even channels: the layer computes the same, and loud channels become quiet."""

import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.cpu_int8.smoothquant import QUIET, SHARE, smooth_layer
from sapwood.backends.torch.llama import LlamaLayer
from tests.helpers import llama_parts
from tests.helpers.llama_parts import EPS, WIDTH

LOUD = torch.ones(WIDTH)
LOUD[3] = 80.0
LOUD[7] = 0.0


def mlp_input(layer: LlamaLayer, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (WIDTH,), layer.mlp_norm, EPS)


def test_the_product_behind_the_norm_is_the_same() -> None:
    layer = llama_parts.make_layer(10)
    smooth = smooth_layer(layer, LOUD)
    x = llama_parts.noise(5, WIDTH, seed=1)
    before = mlp_input(layer, x) @ layer.gate_up.T
    after = mlp_input(smooth, x) @ smooth.gate_up.T
    assert torch.allclose(before, after, atol=1e-4)


def test_nothing_else_is_changed() -> None:
    layer = llama_parts.make_layer(10)
    smooth = smooth_layer(layer, LOUD)
    assert smooth.qkv is layer.qkv
    assert smooth.down is layer.down
    assert smooth.norm is layer.norm
    assert smooth.window == layer.window


def test_a_loud_channel_becomes_quieter_than_it_was_beside_the_others() -> None:
    layer = llama_parts.make_layer(10)
    scale = smooth_layer(layer, LOUD).mlp_norm / layer.mlp_norm
    plain = smooth_layer(layer, torch.ones(WIDTH)).mlp_norm / layer.mlp_norm
    ratio = (scale[3] / scale[4]) / (plain[3] / plain[4])
    assert float(ratio) == pytest.approx(80.0**-SHARE, rel=1e-4)


def test_a_silent_channel_is_not_divided_by_nothing() -> None:
    layer = llama_parts.make_layer(10)
    smooth = smooth_layer(layer, LOUD)
    assert smooth.mlp_norm.isfinite().all()
    assert smooth.gate_up.isfinite().all()
    least = smooth_layer(layer, LOUD.clamp(min=80.0 * QUIET))
    assert torch.equal(smooth.mlp_norm, least.mlp_norm)


def test_only_the_loudest_of_channels_matters_not_the_unit() -> None:
    layer = llama_parts.make_layer(10)
    assert torch.allclose(
        smooth_layer(layer, LOUD).gate_up, smooth_layer(layer, 9 * LOUD).gate_up, rtol=1e-5
    )
