"""Models with a running state: plain decoding, with the text that transformers writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sapwood.backends.torch.load import load, load_any
from sapwood.backends.torch.recurrent import NOTE, RecurrentBackend
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.testing import check_backend
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.tiny_models import COMMON

SMALL = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
HEADS = {
    name: COMMON[name]
    for name in (
        "num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings"
    )
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"state_size": 8}),
    "falcon_h1": (
        "FalconH1Config",
        {**HEADS, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
}


def make(name: str) -> Any:
    """A tiny model with random weights."""
    kind, options = CONFIGS[name]
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, kind)(**SMALL, **ids, **options)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_the_contract_of_the_waist(name: str) -> None:
    check_backend(RecurrentBackend(make(name), name), tolerance=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("recipe", ["auto", "plain", "pld"])
def test_every_recipe_decodes_plainly_what_transformers_writes(name: str, recipe: str) -> None:
    model = make(name)
    prompt = [3, 14, 15, 9, 2, 6]
    rounds = rounds_until(
        RecurrentBackend(model, name), resolve(recipe), prompt, 12, Sampling(max_tokens=20)
    )
    with torch.inference_mode():
        text = list(prompt)
        for _ in range(12):
            text.append(int(model(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
    assert tokens_of(rounds) == text[len(prompt) :]
    assert len(rounds) == 12  # one token a pass


def test_it_is_loaded_and_says_so(tmp_path: Path) -> None:
    make("mamba").save_pretrained(tmp_path / "mamba")
    found, _ = load_any(str(tmp_path / "mamba"), device="cpu")
    assert found.info.note == NOTE
    assert found.info.max_nodes == 1
    with pytest.raises(SapwoodError, match="keeps a running state"):
        load(str(tmp_path / "mamba"), device="cpu")
    with pytest.raises(SapwoodError, match="cannot be run in int8"):
        load_any(str(tmp_path / "mamba"), device="cpu", dtype="int8")


def test_a_model_whose_steps_differ_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("mamba")
    whole = RecurrentBackend._run

    def forgetful(self: RecurrentBackend, tokens: Any, state: Any) -> Any:
        row, state = whole(self, tokens, state)
        return row + len(tokens), state

    monkeypatch.setattr(RecurrentBackend, "_run", forgetful)
    with pytest.raises(SapwoodError, match="other logits step by step"):
        RecurrentBackend(model, "mamba")


def test_a_state_that_is_not_given_back_is_refused() -> None:
    model = make("mamba")
    model.config.use_cache = False
    forward = model.forward

    def stateless(input_ids: Any, **_: Any) -> Any:
        return forward(input_ids=input_ids, use_cache=False)

    model.forward = stateless
    with pytest.raises(SapwoodError, match="cannot be copied"):
        RecurrentBackend(model, "mamba")
