"""What config.json must say in so many words before a model is read without transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.config import (
    CONFIG,
    FOREIGN,
    SIZES,
    LlamaConfig,
    read_config,
    read_rope,
    read_windows,
)

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
QWEN2 = {**PLAIN, "model_type": "qwen2"}
MISSING = "(missing)"  # stands for a key that is not there


def read(folder: Path, record: Any, **changes: Any) -> LlamaConfig | None:
    if isinstance(record, dict):
        record = {**record, **changes}
        record = {name: value for name, value in record.items() if value is not MISSING}
    (folder / CONFIG).write_text(json.dumps(record))
    return read_config(folder)


def test_a_plain_model_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, PLAIN)
    assert found is not None
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (32, 2, 61)
    assert found.head_dim == 8
    assert not found.tie_word_embeddings
    assert (found.sliding_window, found.layer_types) == (None, None)
    assert found.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert found.get_text_config() is found
    assert found.to_dict() == PLAIN


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [MISSING, None, 0, -1, 2.0, "2", True])
def test_every_size_must_be_a_whole_number_above_zero(
    tmp_path: Path, name: str, value: Any
) -> None:
    assert read(tmp_path, PLAIN, **{name: value}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "gpt2"),
        ("model_type", MISSING),
        ("rms_norm_eps", MISSING),
        ("rms_norm_eps", 1),
        ("hidden_act", MISSING),
        ("hidden_act", None),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", True),
        ("head_dim", 7),
        ("hidden_size", 30),
        ("num_key_value_heads", 3),
        ("sliding_window", 5),
        ("layer_types", ["full_attention"] * 2),
        *((name, {"any": 1}) for name in FOREIGN),
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_transformers(tmp_path: Path, name: str, value: Any) -> None:
    assert read(tmp_path, PLAIN, **{name: value}) is None


@pytest.mark.parametrize("record", [[], 7, None, "llama"])
def test_what_is_no_object_is_left_to_transformers(tmp_path: Path, record: Any) -> None:
    assert read(tmp_path, record) is None


def test_a_folder_without_a_readable_file(tmp_path: Path) -> None:
    assert read_config(tmp_path) is None
    (tmp_path / CONFIG).write_text("{")
    assert read_config(tmp_path) is None
    (tmp_path / CONFIG).write_bytes(b"\xff\xfe")
    assert read_config(tmp_path) is None


def test_values_that_change_nothing_are_read(tmp_path: Path) -> None:
    for name in FOREIGN:
        assert read(tmp_path, PLAIN, **{name: None}) is not None
    assert read(tmp_path, PLAIN, attention_bias=False, mlp_bias=False) is not None
    tied = read(tmp_path, PLAIN, tie_word_embeddings=True)
    assert tied is not None
    assert tied.tie_word_embeddings


def test_the_width_of_heads_is_said_or_follows(tmp_path: Path) -> None:
    wider = read(tmp_path, PLAIN, head_dim=16)
    assert wider is not None
    assert wider.head_dim == 16
    qwen3 = {**PLAIN, "model_type": "qwen3"}
    assert read(tmp_path, qwen3) is None  # there it does not follow
    assert read(tmp_path, qwen3, head_dim=16) is not None


def test_queries_of_qwen2_always_have_a_bias(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN2, attention_bias=True) is not None


# ------------------------------------------------------------------------------------------ angles
@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({}, ("default", 10_000.0, None)),
        ({"rope_theta": 5e5}, ("default", 5e5, None)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7}}, ("default", 7, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ("linear", 10_000.0, 2)),
        (
            {"rope_theta": 9.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            ("linear", 9.0, 4.0),
        ),
    ],
)
def test_angles_are_read_from_the_old_place_and_the_new(
    record: dict[str, Any], wanted: tuple[str, float, float | None]
) -> None:
    found = read_rope(record)
    assert found is not None
    assert (found["rope_type"], found["rope_theta"], found.get("factor")) == wanted


@pytest.mark.parametrize(
    "record",
    [
        {"rope_theta": 0},
        {"rope_theta": "1e4"},
        {"rope_theta": True},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "default", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": -1.0}},
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "low": 1}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
    ],
    ids=str,
)
def test_other_angles_are_left_to_transformers(record: dict[str, Any]) -> None:
    assert read_rope(record) is None


@pytest.mark.parametrize(
    ("factor", "scaling"), [(1.0, None), (4.0, {"type": "linear", "factor": 4.0})]
)
def test_rates_fall_from_one_pair_to_the_next(tmp_path: Path, factor: float, scaling: Any) -> None:
    found = read(tmp_path, PLAIN, rope_theta=100.0, rope_scaling=scaling)
    assert found is not None
    wanted = [100.0 ** (-pair / 4) / factor for pair in range(4)]
    assert np.allclose(found.rates().numpy(), wanted, rtol=1e-6)


# ----------------------------------------------------------------------------------------- windows
MISTRAL = {**PLAIN, "model_type": "mistral"}
FULL2, MIXED2 = ["full_attention"] * 2, ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (PLAIN, (None, None)),
        ({**MISTRAL, "sliding_window": 9}, (9, None)),
        ({**MISTRAL, "sliding_window": None}, (None, None)),
        (QWEN2, (None, FULL2)),
        ({**QWEN2, "sliding_window": 9}, (None, FULL2)),
        (
            {**QWEN2, "sliding_window": 9, "use_sliding_window": True, "layer_types": MIXED2},
            (9, MIXED2),
        ),
        ({**QWEN2, "layer_types": FULL2}, (None, FULL2)),
    ],
    ids=range(7),
)
def test_windows_are_those_that_the_kind_usually_has(record: dict[str, Any], wanted: Any) -> None:
    assert read_windows(record) == wanted


@pytest.mark.parametrize(
    "record",
    [
        {**PLAIN, "sliding_window": 9},
        MISTRAL,  # its default is a window
        {**MISTRAL, "sliding_window": 0},
        {**MISTRAL, "sliding_window": "9"},
        {**MISTRAL, "sliding_window": 9, "layer_types": FULL2},
        {**QWEN2, "use_sliding_window": True, "sliding_window": 9},
        {**QWEN2, "layer_types": MIXED2},
        {**QWEN2, "use_sliding_window": True, "layer_types": MIXED2},
        {**QWEN2, "layer_types": FULL2[:1]},
        {**QWEN2, "layer_types": ["full_attention", "chunked_attention"]},
        {**QWEN2, "layer_types": "full_attention"},
    ],
    ids=range(11),
)
def test_other_windows_are_left_to_transformers(record: dict[str, Any]) -> None:
    assert read_windows(record) is None
