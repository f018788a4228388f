"""The config.json of a Llama-like model, read without transformers.

Only explicit values are read. A file that leaves out a size, or needs something that the layers in
`llama.py` do not have, is left to transformers, which knows the defaults and refuses what is wrong.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.hf.support import FULL, SLIDING
from sapwood.backends.torch.llama import KINDS

CONFIG = "config.json"
BIASED = "qwen2"  # the kind whose queries, keys and values always carry a bias
NORMED = "qwen3"  # the kind that norms each head of its queries and keys
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
FOREIGN = (  # options that are not supported here
    "quantization_config",
    "text_config",
    "mlp_bias",
    "partial_rotary_factor",
    "per_layer_config",
)
THETA = 10_000.0  # base of the angles where none is given
ROPES = ("default", "linear")


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Configuration of a Llama-like model, with the names of transformers."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    sliding_window: int | None
    layer_types: list[str] | None  # None: every layer slides, if there is a window
    rope_parameters: dict[str, Any]
    record: Mapping[str, Any]  # the whole file

    def get_text_config(self) -> "LlamaConfig":
        """The configuration itself: the model is text-only."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        return dict(self.record)

    def rates(self) -> Tensor:
        """Rotary frequencies in radians per position, float32 [head_dim / 2]."""
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float) / self.head_dim
        found: Tensor = (
            1.0
            / (self.rope_parameters["rope_theta"] ** steps)
            / self.rope_parameters.get("factor", 1.0)
        )
        return found


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Values of any model's config.json that a packed network needs beside its own file."""

    model_type: str
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int | None
    rope_parameters: dict[str, Any] | None
    record: Mapping[str, Any]  # the whole file

    @classmethod
    def read(cls, folder: Path) -> "ModelFacts | None":
        """Those of a folder; None if its file lacks one."""
        try:
            record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            return cls(
                record["model_type"],
                int(record["num_hidden_layers"]),
                int(record["vocab_size"]),
                record.get("max_position_embeddings"),
                record.get("rope_parameters"),
                record,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def get_text_config(self) -> "ModelFacts":
        """The facts themselves: the model is text-only."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        return dict(self.record)


def read_config(folder: Path) -> LlamaConfig | None:
    """The configuration in a folder; None if it is not a supported Llama-like model."""
    try:
        record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if (
        not isinstance(record, dict)
        or record.get("model_type") not in KINDS
        or any(map(record.get, FOREIGN))
    ):
        return None
    sizes: dict[str, Any] = {name: record.get(name) for name in SIZES} | {
        "head_dim": head_width(record)
    }
    eps: Any
    eps = record.get("rms_norm_eps")
    act = record.get("hidden_act")
    tied = record.get("tie_word_embeddings", False)
    rope = read_rope(record)
    sound = all(type(size) is int and size > 0 for size in sizes.values()) and type(eps) is float
    if (
        not sound
        or not isinstance(act, str)
        or not isinstance(tied, bool)
        or rope is None
        or biased(record)
    ):
        return None
    slides = read_windows(record)
    if slides is None or not shaped(sizes):
        return None
    window, kinds = slides
    return LlamaConfig(
        **sizes,
        model_type=record["model_type"],
        rms_norm_eps=eps,
        hidden_act=act,
        tie_word_embeddings=tied,
        sliding_window=window,
        layer_types=kinds,
        rope_parameters=rope,
        record=record,
    )


def head_width(record: Mapping[str, Any]) -> Any:
    """Head width, given or derived; None if neither."""
    if (named := record.get("head_dim")) is not None or record["model_type"] == NORMED:
        return named
    width = record.get("hidden_size")
    heads = record.get("num_attention_heads")
    return (
        width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None
    )


def shaped(sizes: Mapping[str, Any]) -> bool:
    """True if the sizes divide evenly into heads."""
    width, heads, kv_heads = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    return bool(width % heads == 0 and heads % kv_heads == 0 and sizes["head_dim"] % 2 == 0)


def biased(record: Mapping[str, Any]) -> bool:
    """True if attention has a bias that this model type does not always have."""
    return bool(record.get("attention_bias")) and record["model_type"] != BIASED


def read_rope(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """RoPE type, base and factor; None if the type is not supported."""
    found = record.get("rope_scaling") or record.get("rope_parameters") or {}
    if not isinstance(found, dict):
        return None
    kind = found.get("rope_type", found.get("type", "default"))
    theta = found.get("rope_theta", record.get("rope_theta", THETA))
    factor = found.get("factor", 1.0)
    numbers = all(type(value) in (int, float) and value > 0 for value in (theta, factor))
    known = set(found) <= {"rope_type", "type", "rope_theta", "factor"} and kind in ROPES
    if not known or not numbers or ("factor" in found) != (kind == "linear"):
        return None
    return {"rope_type": kind, "rope_theta": theta} | (
        {"factor": factor} if kind == "linear" else {}
    )


def read_windows(record: Mapping[str, Any]) -> tuple[int | None, list[str] | None] | None:
    """Sliding window and layer types; None if unusual for this model type."""
    window = record.get("sliding_window")
    kinds = record.get("layer_types")
    if not (window is None or (type(window) is int and window > 0)):
        return None
    if record["model_type"] == "llama":
        return (None, None) if window is None and kinds is None else None
    if record["model_type"] == "mistral":
        return (window, None) if "sliding_window" in record and kinds is None else None
    slides = record.get("use_sliding_window", False)
    layers = record.get("num_hidden_layers")
    if kinds is None and slides is False and type(layers) is int:
        kinds = [FULL] * layers
    wanted = {FULL, SLIDING} if slides is True and window is not None else {FULL}
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not wanted.issuperset(map(str, kinds))
    ):
        return None
    return window if slides is True else None, kinds
