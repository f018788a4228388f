"""A model that is not loaded: what it answers itself, and what it loads the real one for."""

from typing import Any

import pytest
import torch

from sapwood.backends.torch.config import LlamaConfig
from sapwood.backends.torch.lazy_model import LazyMatrix, LazyModel, whole

CONFIG = LlamaConfig(
    model_type="llama", hidden_size=2, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
    num_key_value_heads=1, vocab_size=7, max_position_embeddings=16, head_dim=2, rms_norm_eps=1e-5,
    hidden_act="silu", tie_word_embeddings=False, sliding_window=None, layer_types=None,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, record={"model_type": "llama"},
)  # fmt: skip


class Real:
    """Stands for the transformers model."""

    def __init__(self) -> None:
        self.base_model = "layers"

    def eval(self) -> str:
        raise AssertionError("the real model was asked")


@pytest.fixture
def loads() -> list[Real]:
    return []


@pytest.fixture
def model(loads: list[Real]) -> LazyModel:
    def load() -> Real:
        loads.append(Real())
        return loads[-1]

    embedding = LazyMatrix(lambda: torch.eye(7)[:, :2])
    head = LazyMatrix(lambda: torch.eye(7)[:, :2] * 3)
    return LazyModel(CONFIG, embedding, head, load)


def test_a_matrix_is_read_once_and_when_it_is_asked_for() -> None:
    read: list[int] = []

    def matrix() -> torch.Tensor:
        read.append(1)
        return torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])

    lazy = LazyMatrix(matrix)
    assert read == []
    assert lazy(torch.tensor([[3.0, 4.0]])).tolist() == [[3, 8, 7]]
    assert lazy.weight is lazy.weight
    assert read == [1]


def test_what_drafters_ask_for_loads_nothing(model: LazyModel, loads: list[Real]) -> None:
    assert model.vocab == 7
    assert model.config is CONFIG
    assert model.eval() is model
    assert model.device == torch.device("cpu")
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight[1].tolist() == [0, 1]
    assert model.get_output_embeddings().weight[1].tolist() == [0, 3]
    assert loads == []


def test_everything_else_is_the_real_models_own(model: LazyModel, loads: list[Real]) -> None:
    assert model.base_model == "layers"
    assert model.base_model == "layers"
    assert len(loads) == 1
    with pytest.raises(AttributeError, match="colour"):
        _ = model.colour


def test_private_names_load_nothing(model: LazyModel, loads: list[Real]) -> None:
    with pytest.raises(AttributeError):
        _ = model._modules
    assert not hasattr(model, "__wrapped__")
    assert loads == []


def test_the_real_model_is_had_from_either(model: LazyModel, loads: list[Real]) -> None:
    real: Any = whole(model)
    assert real is loads[0]
    assert whole(real) is real
