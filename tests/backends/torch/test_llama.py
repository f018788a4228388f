"""The description of Llama-like models: run in float64 with plain operations, it says what transformers says."""

from typing import Any

import pytest
import torch

from sapwood.backends.torch.llama import describe
from tests.helpers import tiny_models
from tests.helpers.reference_llama import reference_logits

LIKE = ["llama", "mistral", "qwen2", "qwen2-mixed", "qwen3"]


@pytest.mark.parametrize("name", LIKE)
@torch.inference_mode()
def test_the_description_says_what_the_model_says(name: str) -> None:
    model = tiny_models.make(name)
    net = describe(model)
    assert net is not None
    tokens = torch.arange(1, 13)
    want = model.double()(input_ids=tokens[None]).logits[0]
    torch.testing.assert_close(reference_logits(net, tokens), want, rtol=1e-5, atol=1e-5)


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
    model = tiny_models.make("llama", rope_parameters=rope)
    net = describe(model)
    assert net is not None
    tokens = torch.arange(1, 40)
    torch.testing.assert_close(
        reference_logits(net, tokens),
        model.double()(input_ids=tokens[None]).logits[0],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", sorted(set(tiny_models.NAMES) - set(LIKE)))
def test_what_is_not_like_a_llama_is_not_described(name: str) -> None:
    assert describe(tiny_models.make(name)) is None


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
    assert describe(tiny_models.make("llama", **option)) is None
