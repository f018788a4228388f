"""An adapter behind a target's first layers: rows, logits over the whole vocabulary, and the early_exit_model model."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import (
    UNKNOWN,
    EarlyExitConfig,
    EarlyExitHead,
    ExitHead,
    check_exits,
    early_exit_model,
    shallow_copy,
)
from sapwood.heads.layers import LayerShape

WIDTH, VOCAB = 6, 11
SHAPE = LayerShape(WIDTH, 2, 1, 4, 8)
TOKENS = torch.tensor([1, 4, 9])


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(layer: int = 2, **options: Any) -> EarlyExitHead:
    torch.manual_seed(0)
    head = EarlyExitHead(EarlyExitConfig(SHAPE, VOCAB, len(TOKENS), layer, **options))
    head.use_vocabulary(TOKENS)
    head.attach(noise(VOCAB, WIDTH), noise(VOCAB, WIDTH, seed=1))
    return head


@torch.no_grad()
def test_rows_see_those_before_them() -> None:
    head = make()
    x = noise(1, 5, WIDTH)
    places = torch.arange(5)[None]
    whole = head(x, position_ids=places, causal=True)
    for rows in (1, 3):
        part = head(x[:, :rows], position_ids=places[:, :rows], causal=True)
        assert torch.allclose(whole[:, :rows], part, atol=1e-5)
    moved = x.clone()
    moved[:, 0] += 1
    assert not torch.allclose(head(moved, position_ids=places, causal=True)[:, 4], whole[:, 4])


@torch.no_grad()
def test_without_attention_each_row_is_for_itself() -> None:
    head = make(attention=False)
    x = noise(1, 5, WIDTH)
    whole = head(x)
    assert torch.allclose(whole[:, 2:3], head(x[:, 2:3]), atol=1e-6)
    assert not hasattr(head, "self_attn")


@torch.no_grad()
def test_states_may_come_as_they_are() -> None:
    head = make(attention=False, levelled=False)
    x = noise(1, 3, WIDTH)
    wanted = x + head.mlp(head.post_attention_layernorm(x))
    assert torch.allclose(head(x), wanted)


@torch.no_grad()
def test_keys_are_kept_by_who_runs_the_target() -> None:
    head = make(layer=3)
    asked: list[int] = []

    class Cache:
        def update(self, key: Any, value: Any, layer: int) -> Any:
            asked.append(layer)
            return key, value

    head(noise(1, 2, WIDTH), position_ids=torch.arange(2)[None], past_key_values=Cache())
    assert asked == [3]


@torch.no_grad()
def test_logits_are_over_the_whole_vocabulary() -> None:
    head = make()
    out = ExitHead(head)
    states = noise(1, 2, WIDTH)
    logits = out(states)
    assert logits.shape == (1, 2, VOCAB)
    assert torch.allclose(logits[..., TOKENS], states @ head.output.T, atol=1e-5)
    others = [token for token in range(VOCAB) if token not in TOKENS.tolist()]
    assert (logits[..., others] == UNKNOWN).all()
    assert torch.equal(out.states, states[0])  # what the newest pass gave it to read


# ------------------------------------------------------------------------------ the early_exit_model model
class Base(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.norm: nn.Module = nn.LayerNorm(WIDTH)


class Model(nn.Module):
    base_model_prefix = "model"

    def __init__(self, layers: int = 4, kinds: list[str] | None = None) -> None:
        super().__init__()
        self.model = Base(layers)
        self.lm_head: nn.Module = nn.Linear(WIDTH, VOCAB)
        self.config = Config(layers, kinds)

    @property
    def base_model(self) -> nn.Module:
        return self.model

    def set_output_embeddings(self, head: nn.Module) -> None:
        self.lm_head = head


@dataclass
class Config:
    num_hidden_layers: int
    layer_types: list[str] | None

    def get_text_config(self) -> "Config":
        return self


def test_the_short_model_shares_the_first_layers_and_ends_in_the_adapter() -> None:
    model = Model()
    head = make(layer=2)
    short: Any = early_exit_model(model, head)
    assert type(short) is Model
    assert list(short.model.layers)[:2] == list(model.model.layers)[:2]
    assert short.model.layers[2] is head
    assert len(short.model.layers) == 3
    assert short.model.norm is head.norm
    assert isinstance(short.lm_head, ExitHead)
    assert short.config.num_hidden_layers == 3
    # the target itself is as it was
    assert len(model.model.layers) == model.config.num_hidden_layers == 4
    assert isinstance(model.lm_head, nn.Linear)
    assert isinstance(model.model.norm, nn.LayerNorm)


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        (
            ["sliding_attention", "full_attention"] * 2,
            ["sliding_attention", "full_attention", "full_attention"],
        ),
        (["sliding_attention"] * 4, ["sliding_attention"] * 3),
        (None, None),
    ],
)
def test_the_adapter_sees_everything_where_the_target_does_somewhere(
    kinds: list[str] | None, wanted: list[str] | None
) -> None:
    short = early_exit_model(Model(kinds=kinds), make(layer=2))
    assert short.config.layer_types == wanted


@pytest.mark.parametrize("layer", [0, 4, 9])
def test_an_exit_needs_layers_on_both_sides(layer: int) -> None:
    with pytest.raises(SapwoodError, match=f"after {layer} layers needs a model of more .* has 4"):
        check_exits(Model(), layer)


def test_a_model_of_another_build_is_refused() -> None:
    model = Model()
    del model.model.norm
    with pytest.raises(SapwoodError, match="Model is not built as layers and a norm"):
        check_exits(model, 2)


def test_a_shell_can_be_changed_without_the_original() -> None:
    model = Model()
    copy = shallow_copy(model)
    copy.lm_head = nn.Identity()
    assert isinstance(model.lm_head, nn.Linear)
    assert copy.model is model.model
