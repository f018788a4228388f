"""The config.json of EAGLE-3 heads, in the two dialects that other engines read.

EAGLE's (EAGLE itself, SpecForge, SGLang) is flat; that of speculators (vLLM) nests a Llama config.
Their layer ids differ: in EAGLE's an id is the layer whose OUTPUT is read, in the other one the
layer whose INPUT is. Engines agree only on the default of EAGLE's dialect, so ids are written there
only for other layers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapwood.heads.eagle3 import FEATURES, Eagle3Config
from sapwood.heads.folder import refuse
from sapwood.heads.layers import LayerShape
from sapwood.heads.target_info import TargetInfo, default_features

IDS = "eagle_aux_hidden_state_layer_ids"
FORMAT = "0.5.0"  # of speculators, whose keys these are
CHAIN = 5  # tokens that vLLM drafts at a time by default
THETA = 10_000.0  # Llama's default
# options of other trainers that change what the network computes
UNSUPPORTED = (
    "norm_output",
    "norm_before_fc",
    "fc_norm",
    "use_aux_norm",
    "attention_bias",
    "mlp_bias",
    "use_sliding_window",
)


# ---------------------------------------------------------------------------------------- writing
def llama_config(config: Eagle3Config, facts: TargetInfo | None) -> dict[str, Any]:
    """The decoder layer as a Llama config."""
    shape = config.shape
    return {
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        # the target's may be tied, but the head's output is smaller than its input
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        **(facts.specials if facts else {}),
    }


def eagle_config(config: Eagle3Config, facts: TargetInfo | None = None) -> dict[str, Any]:
    """The config in EAGLE's dialect."""
    found = {
        **llama_config(config, facts),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.draft_vocab,
        **target_width_key(config),
    }
    if config.norm_before_residual:  # EAGLE's own rule has no key
        found["norm_before_residual"] = True
    # without a target: the depth for which these features would be the default
    layers = facts.layers if facts else config.features[-1] + 3
    if config.features != default_features(layers):
        found["eagle_config"] = {
            "use_aux_hidden_state": True,
            IDS: [layer - 1 for layer in config.features],
        }
    return found


def speculators_config(
    config: Eagle3Config, verifier: str, facts: TargetInfo | None
) -> dict[str, Any]:
    """The config in the dialect of speculators; the verifier is the target's name."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": FORMAT,
        "transformer_layer_config": llama_config(config, facts),
        "draft_vocab_size": config.draft_vocab,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        IDS: list(config.features),
        **target_width_key(config),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": CHAIN}],
            "verifier": {
                "name_or_path": verifier,
                "architectures": list(facts.architectures) if facts else [],
            },
        },
    }


def target_width_key(config: Eagle3Config) -> dict[str, int]:
    """The target's width, which is written only where it differs from the head's."""
    if config.target_width == config.shape.width:
        return {}
    return {"target_hidden_size": config.target_width}


# ---------------------------------------------------------------------------------------- reading
def from_eagle(folder: Path, record: Mapping[str, Any], facts: TargetInfo) -> Eagle3Config:
    """The head's config from one in EAGLE's dialect."""
    nested = record.get("eagle_config")
    more = nested if isinstance(nested, Mapping) else {}
    check_plain(folder, more)
    if more.get("use_aux_hidden_state", True) is not True:
        refuse(
            folder,
            "reads only the target's last layer (use_aux_hidden_state is not true); "
            "use another head",
        )
    ids = more.get(IDS, record.get(IDS))
    return assemble(folder, record, record, features_of(folder, ids, 1, facts), False)


def from_speculators(folder: Path, record: Mapping[str, Any], facts: TargetInfo) -> Eagle3Config:
    """The head's config from one in the dialect of speculators."""
    if record.get("speculators_model_type") != "eagle3":
        kind = record.get("speculators_model_type")
        refuse(folder, f"holds a speculator of type {kind!r}, not 'eagle3'; use another head")
    layer = record.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        refuse(folder, "has no transformer_layer_config in its config; download it again")
    check_plain(folder, layer)
    return assemble(folder, record, layer, features_of(folder, record.get(IDS), 0, facts), True)


def assemble(
    folder: Path,
    record: Mapping[str, Any],
    layer: Mapping[str, Any],
    features: tuple[int, int, int],
    norm_before_residual: bool,  # default of the dialect
) -> Eagle3Config:
    """The head's config from the part about the head and the part about its layer."""
    check_plain(folder, record)
    keys = ConfigNumbers(folder, record)
    inner = ConfigNumbers(folder, layer)
    given = record.get("norm_before_residual")
    width, heads, vocab = (
        inner.whole(name) for name in ("hidden_size", "num_attention_heads", "vocab_size")
    )
    if inner.whole("num_hidden_layers", 1) != 1:
        refuse(
            folder,
            f"has {layer['num_hidden_layers']} layers, and one is supported; use another head",
        )
    if layer.get("hidden_act", "silu") != "silu":
        refuse(
            folder,
            f"has the activation {layer['hidden_act']!r}, and silu is supported; use another head",
        )
    shape = LayerShape(
        width,
        heads,
        inner.whole("num_key_value_heads", heads),
        inner.whole("head_dim", width // heads),
        inner.whole("intermediate_size"),
        inner.number("rms_norm_eps", 1e-6),
        theta_of(folder, layer),
    )
    return Eagle3Config(
        shape,
        keys.whole("target_hidden_size", width),
        vocab,
        keys.whole("draft_vocab_size", vocab),
        features,
        inner.whole("max_position_embeddings", 2048),
        norm_before_residual if given is None else bool(given),
    )


def check_plain(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse options that change the network's computation."""
    for name in UNSUPPORTED:
        if record.get(name):
            refuse(
                folder,
                f"sets {name}, which is not supported here; use a head that was trained without it",
            )
    if "sliding_attention" in (record.get("layer_types") or ()):
        refuse(
            folder,
            "has sliding_attention in its layer_types, which is not supported here; "
            "use another head",
        )


def theta_of(folder: Path, layer: Mapping[str, Any]) -> float:
    """The base of the rotary angles, from the old key or the new one; scaling is refused."""
    for key in ("rope_parameters", "rope_scaling"):
        nested = layer.get(key) or {}
        kind = (
            nested.get("rope_type", nested.get("type", "default"))
            if isinstance(nested, Mapping)
            else nested
        )
        if kind != "default":
            refuse(
                folder,
                f"scales its rotary angles ({key} {kind!r}), which is not supported; "
                "use another head",
            )
    new = ConfigNumbers(folder, layer.get("rope_parameters") or {}).number("rope_theta", 0.0)
    old = ConfigNumbers(folder, layer).number("rope_theta", 0.0)
    if new and old and new != old:
        refuse(
            folder,
            f"names two values of rope_theta, {old:g} and {new:g}; "
            "keep the one it was trained with",
        )
    return new or old or THETA


def features_of(folder: Path, ids: Any, shift: int, facts: TargetInfo) -> tuple[int, int, int]:
    """The layers whose inputs are read; `shift` turns the dialect's ids into those."""
    if ids is None or ids == []:
        return default_features(facts.layers)
    if (
        not isinstance(ids, list)
        or len(ids) != FEATURES
        or not all(type(layer) is int for layer in ids)
    ):
        refuse(
            folder,
            f"names the layers {ids!r}, and {FEATURES} whole numbers belong there; "
            "use another head",
        )
    low, middle, high = (layer + shift for layer in ids)
    return low, middle, high


class ConfigNumbers:
    """Numbers of a config by name; any other value is refused with the folder's name."""

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self.folder = folder
        self.record = record

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.given(name, default)
        if type(value) is not int or value <= 0:
            refuse(
                self.folder,
                f"has {name} {value!r} in its config, not a whole number above 0; "
                "download it again",
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number that is not negative."""
        value = self.given(name, default)
        if type(value) not in (int, float) or value < 0:
            refuse(
                self.folder, f"has {name} {value!r} in its config, not a number; download it again"
            )
        return float(value)

    def given(self, name: str, default: float | None) -> Any:
        """The value, or the default if there is none."""
        value = self.record.get(name)
        if value is None and default is None:
            refuse(self.folder, f"has no {name} in its config; download it again")
        return default if value is None else value
