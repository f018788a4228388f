"""What must be known of a target before somebody else's head for it can be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import SapwoodError

# the words of a size in configurations of different families, the usual one first
WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
SPECIALS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Sizes of a target, and what a head's config repeats of it."""

    width: int  # of the residual stream
    layers: int
    vocab: int
    architectures: tuple[str, ...] = ()
    specials: Mapping[str, Any] = field(default_factory=dict)  # bos, eos and pad ids, where it has them

    @classmethod
    def of(cls, record: Mapping[str, Any], name: str) -> "TargetFacts":
        """From the target's config.json, or its config's `to_dict()`."""
        inner = record.get("text_config")  # a model that also sees keeps its language part there
        text = inner if isinstance(inner, Mapping) else record
        specials = {key: text.get(key, record.get(key)) for key in SPECIALS}
        return cls(
            size(text, WIDTH, name),
            size(text, LAYERS, name),
            size(text, ("vocab_size",), name),
            tuple(map(str, record.get("architectures") or ())),
            {key: value for key, value in specials.items() if value is not None},
        )


def size(record: Mapping[str, Any], words: tuple[str, ...], name: str) -> int:
    """The first of these sizes that the record has."""
    for word in words:
        if type(value := record.get(word)) is int and value > 0:
            return value
    raise SapwoodError(f"the config of model {name!r} has no {words[0]}; heads need it, use another model")


def default_features(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs EAGLE-3 reads unless it is told otherwise."""
    return 2, layers // 2, layers - 3
