"""Channel statistics of a layer against single numbers in float64."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.activation_stats import ActivationStats, sliding
from sapwood.backends.torch.cpu_int8 import smoothquant
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel
from sapwood.core.array_types import FloatArray
from tests.helpers import llama_parts
from tests.helpers.llama_parts import EPS, HEAD_WIDTH, HEADS, INNER, KV_HEADS, VOCAB

TOKENS = 9


@pytest.fixture(autouse=True)
def short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothquant, "TOKENS", TOKENS)


def normed(x: FloatArray, weight: torch.Tensor) -> FloatArray:
    found: FloatArray = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight.numpy()
    return found


def turned(head: FloatArray, position: int, model: LlamaModel) -> FloatArray:
    half = HEAD_WIDTH // 2
    angles = position * model.rates.numpy().astype(np.float64)
    low, high = head[:half], head[half:]
    return np.concatenate(
        (low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles))
    )


def run(states: FloatArray, layer: LlamaLayer, model: LlamaModel) -> tuple[FloatArray, FloatArray]:
    """States after a layer [tokens, width], and the input of its MLP, token by token."""
    x = normed(states, layer.norm)
    made = x @ layer.qkv.numpy().T.astype(np.float64)
    if layer.qkv_bias is not None:
        made += layer.qkv_bias.numpy()
    heads = made.reshape(TOKENS, -1, HEAD_WIDTH)
    if layer.query_norm is not None and layer.key_norm is not None:
        heads[:, :HEADS] = normed(heads[:, :HEADS], layer.query_norm)
        heads[:, HEADS : HEADS + KV_HEADS] = normed(
            heads[:, HEADS : HEADS + KV_HEADS], layer.key_norm
        )
    read = np.zeros((TOKENS, HEADS * HEAD_WIDTH))
    for token in range(TOKENS):
        first = max(0, token - layer.window + 1) if layer.window else 0
        for head in range(HEADS):
            shared = HEADS + head // (HEADS // KV_HEADS)
            query = turned(heads[token, head], token, model)
            seen = range(first, token + 1)
            products = np.array([query @ turned(heads[k, shared], k, model) for k in seen])
            weights = np.exp((products - products.max()) * model.scale)
            values = heads[first : token + 1, shared + KV_HEADS]
            read[token, head * HEAD_WIDTH : (head + 1) * HEAD_WIDTH] = (
                weights / weights.sum() @ values
            )
    middle = states + read @ layer.out.numpy().T
    x = normed(middle, layer.mlp_norm)
    both = x @ layer.gate_up.numpy().T
    gate, up = both[:, :INNER], both[:, INNER:]
    return middle + (gate / (1 + np.exp(-gate)) * up) @ layer.down.numpy().T, x


@pytest.mark.parametrize(
    "layer",
    [
        llama_parts.make_layer(10),
        llama_parts.make_layer(20, bias=True),
        llama_parts.make_layer(30, norms=True),
        llama_parts.make_layer(40, window=3),
        llama_parts.make_layer(50, window=TOKENS + 5),
    ],
    ids=["plain", "bias", "norms", "window", "long window"],
)
def test_two_layers_are_heard_as_they_are_computed(layer: LlamaLayer) -> None:
    model = llama_parts.make_model(layer, llama_parts.make_layer(60))
    stats = ActivationStats(model)
    noise = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (1, TOKENS), generator=noise)[0]
    states = model.embedding[tokens].double().numpy()
    for each in model.layers:
        states, x = run(states, each, model)
        measured = stats.measure(each)
        assert measured.shape == (model.width,)
        assert np.allclose(measured.numpy(), np.sqrt((x**2).mean(0)), rtol=1e-4, atol=1e-5)
        assert np.allclose(stats.states[0].numpy(), states, rtol=1e-3, atol=1e-4)


def test_a_window_hides_what_lies_before_it() -> None:
    mask = sliding(3, TOKENS)[0, 0]
    assert mask.shape == (TOKENS, TOKENS)
    for row in range(TOKENS):
        assert mask[row].nonzero().flatten().tolist() == list(range(max(0, row - 2), row + 1))


def test_the_text_is_the_same_every_time() -> None:
    model = llama_parts.make_model()
    one, two = ActivationStats(model), ActivationStats(model)
    assert torch.equal(one.states, two.states)
