"""Descriptions of architectures: run in float64 with plain operations, they say what transformers says."""

from typing import Any

import pytest
import torch
import transformers

from sapwood.backends.torch.architectures import describe, missing_part, share_weights
from tests.helpers import tiny_models
from tests.helpers.int8_targets import CPU_ONLY, EXPERTS, EXTENDED, PACKABLE, RELATED
from tests.helpers.reference_llama import reference_logits


@pytest.mark.parametrize("name", [*RELATED, *EXTENDED, *EXPERTS])
@torch.inference_mode()
def test_the_description_says_what_the_model_says(name: str) -> None:
    model = tiny_models.make(name)
    net = describe(model)
    assert net is not None
    assert net.extended == (name not in RELATED)
    tokens = torch.arange(1, 13)
    # transformers' products of experts are not for float64
    exact = torch.float32 if name in EXPERTS else torch.float64
    want = model.to(exact)(input_ids=tokens[None]).logits[0].double()
    near = 1e-3 if name in EXPERTS else 1e-5
    torch.testing.assert_close(reference_logits(net, tokens), want, rtol=near, atol=near)


@pytest.mark.parametrize("name", [name for name in PACKABLE if name not in CPU_ONLY])
@torch.inference_mode()
def test_a_model_that_shares_weights_with_its_description_stays_as_it_is(name: str) -> None:
    model = tiny_models.make(name)
    tokens = torch.arange(1, 13)[None]
    want = model(input_ids=tokens).logits
    net = describe(model)
    assert net is not None
    share_weights(model, net)
    assert torch.equal(model(input_ids=tokens).logits, want)
    own = {part.data_ptr() for part in model.model.layers[0].parameters()}
    first = net.layers[0]
    assert {first.out.data_ptr(), first.gate_up.data_ptr(), first.down.data_ptr()} <= own
    # in another order than the model's
    assert (first.qkv.data_ptr() in own) == (name != "phi3-partial")


def test_shifted_norms_are_not_rounded() -> None:
    net = describe(tiny_models.make("gemma3", torch.bfloat16))
    assert net is not None
    assert net.norm.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(set(tiny_models.NAMES) - set(PACKABLE)))
def test_other_architectures_have_no_description(name: str) -> None:
    assert describe(tiny_models.make(name)) is None


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("gemma3", {"hidden_activation": "relu"}),
        ("gemma3", {"use_bidirectional_attention": True}),
        (
            "smollm3",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ),
    ],
)
def test_an_option_that_the_layers_lack_is_not_described(name: str, option: dict[str, Any]) -> None:
    assert describe(tiny_models.make(name, **option)) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("Qwen2MoeConfig", "architecture qwen2_moe, which has shared experts"),
        ("GlmConfig", "architecture glm, which rotates neighbouring elements"),
        ("CohereConfig", "architecture cohere, which runs attention and MLP side by side"),
        ("Starcoder2Config", "architecture starcoder2, which has norms that subtract the mean"),
        ("GPTJConfig", "architecture gptj"),
    ],
)
def test_one_sentence_says_what_int8_lacks(config: str, words: str) -> None:
    assert missing_part(getattr(transformers, config)()) == f"int8 has no layers for the {words}"


def test_factors_of_granite_are_in_the_weights() -> None:
    model = tiny_models.make("granite", attention_bias=True, mlp_bias=True)
    net = describe(model)
    assert net is not None
    tokens = torch.arange(1, 13)
    with torch.inference_mode():
        want = model.double()(input_ids=tokens[None]).logits[0]
        torch.testing.assert_close(reference_logits(net, tokens), want, rtol=1e-5, atol=1e-5)


def test_a_model_of_images_and_text_has_no_description() -> None:
    text = {**tiny_models.COMMON, "head_dim": 8}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    vision = {**sizes, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    auto: Any = transformers.AutoModelForCausalLM
    assert describe(auto.from_config(config)) is None


def test_a_tensor_that_is_not_known_is_not_left_out() -> None:
    model = tiny_models.make("olmo2")
    assert describe(model) is not None
    model.model.layers[1].self_attn.gate = torch.nn.Linear(32, 4)
    assert describe(model) is None
