"""Facts of a target that are needed to read heads of other trainers for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import SapwoodError

# keys of a size in the configs of different model families, the usual one first
WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
SPECIALS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Sizes of a target, and the fields that a head's config repeats."""

    width: int  # of the residual stream
    layers: int
    vocab: int
    architectures: tuple[str, ...] = ()
    specials: Mapping[str, Any] = field(default_factory=dict)  # bos, eos and pad ids, if any

    @classmethod
    def of(cls, record: Mapping[str, Any], name: str) -> "TargetInfo":
        """From the target's config.json, or its config's `to_dict()`."""
        inner = record.get("text_config")  # of a multimodal model
        text = inner if isinstance(inner, Mapping) else record
        specials = {key: text.get(key, record.get(key)) for key in SPECIALS}
        return cls(
            size(text, WIDTH, name),
            size(text, LAYERS, name),
            size(text, ("vocab_size",), name),
            tuple(map(str, record.get("architectures") or ())),
            {key: value for key, value in specials.items() if value is not None},
        )


def size(record: Mapping[str, Any], keys: tuple[str, ...], name: str) -> int:
    """The first of these sizes that the record has."""
    for key in keys:
        if type(value := record.get(key)) is int and value > 0:
            return value
    raise SapwoodError(
        f"the config of model {name!r} has no {keys[0]}; heads need it, use another model"
    )


def default_features(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs EAGLE-3 reads by default."""
    return 2, layers // 2, layers - 3
