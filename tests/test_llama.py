"""The description of Llama-like models: run in float64 with plain operations, it says what transformers says."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.llama import Llama, describe
from tests import tiny

LIKE = ["llama", "mistral", "qwen2", "qwen2-mixed", "qwen3"]


def rotated(x: torch.Tensor, angles: torch.Tensor, amplitude: float) -> torch.Tensor:
    """x [heads, rows, width] turned by angles [rows, width / 2]."""
    left, right = x.chunk(2, -1)
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def logits(net: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """The definition, in as few words as possible."""
    rows = torch.arange(len(tokens))
    angles = rows[:, None].double() * net.rates.double()
    x = net.embedding.double()[tokens]
    for layer in net.layers:
        bias = None if layer.qkv_bias is None else layer.qkv_bias.double()
        y = F.linear(F.rms_norm(x, x.shape[-1:], layer.norm.double(), net.eps), layer.qkv.double(), bias)
        heads = y.view(len(tokens), -1, net.head_width).transpose(0, 1)
        q, k, v = torch.split(heads, [net.heads, net.kv_heads, net.kv_heads])
        if layer.query_norm is not None and layer.key_norm is not None:
            q = F.rms_norm(q, q.shape[-1:], layer.query_norm.double(), net.eps)
            k = F.rms_norm(k, k.shape[-1:], layer.key_norm.double(), net.eps)
        q, k = rotated(q, angles, net.amplitude), rotated(k, angles, net.amplitude)
        k, v = (part.repeat_interleave(net.heads // net.kv_heads, 0) for part in (k, v))
        gap = rows[:, None] - rows
        seen = (gap >= 0) & ((gap < layer.window) if layer.window else True)
        weights = (q @ k.transpose(1, 2) * net.scale).masked_fill(~seen, -torch.inf).softmax(-1)
        x = x + F.linear((weights @ v).transpose(0, 1).flatten(1), layer.out.double())
        gate, up = F.linear(
            F.rms_norm(x, x.shape[-1:], layer.mlp_norm.double(), net.eps), layer.gate_up.double()
        ).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.down.double())
    return F.linear(F.rms_norm(x, x.shape[-1:], net.norm.double(), net.eps), net.head.double())


@pytest.mark.parametrize("name", LIKE)
@torch.inference_mode()
def test_the_description_says_what_the_model_says(name: str) -> None:
    model = tiny.make(name)
    net = describe(model)
    assert net is not None
    tokens = torch.arange(1, 13)
    want = model.double()(input_ids=tokens[None]).logits[0]
    torch.testing.assert_close(logits(net, tokens), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 1e4,
        },
    ],
)
@torch.inference_mode()
def test_scaled_rotations_are_described(rope: dict[str, Any]) -> None:
    model = tiny.make("llama", rope_parameters=rope)
    net = describe(model)
    assert net is not None
    tokens = torch.arange(1, 40)
    torch.testing.assert_close(
        logits(net, tokens), model.double()(input_ids=tokens[None]).logits[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", sorted(set(tiny.NAMES) - set(LIKE)))
def test_what_is_not_like_a_llama_is_not_described(name: str) -> None:
    assert describe(tiny.make(name)) is None


@pytest.mark.parametrize(
    "option",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_an_option_that_the_fast_paths_lack_is_not_described(option: dict[str, Any]) -> None:
    assert describe(tiny.make("llama", **option)) is None
