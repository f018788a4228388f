"""Validates an EAGLE-3 folder against the published names, shapes and types.

It shares no code with the heads and their files, so that a fault there cannot hide itself here.
Deviations that engines tolerate are faults too.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

# shapes in symbols: H width, T three features of the target, E embedding and feature, Q queries,
# K keys, F inner, D draft vocabulary, V vocabulary
LAYER = {
    "input_layernorm.weight": "H",
    "hidden_norm.weight": "H",
    "self_attn.q_proj.weight": "QE",
    "self_attn.k_proj.weight": "KE",
    "self_attn.v_proj.weight": "KE",
    "self_attn.o_proj.weight": "HQ",
    "post_attention_layernorm.weight": "H",
    "mlp.gate_proj.weight": "FH",
    "mlp.up_proj.weight": "FH",
    "mlp.down_proj.weight": "HF",
}
AROUND = {"fc.weight": "HT", "norm.weight": "H", "lm_head.weight": "DH"}
MAPS = {"d2t": "D", "t2d": "V"}
OPTIONAL = {"embed_tokens.weight": "VH"}
TYPES = {"d2t": {"I64"}, "t2d": {"BOOL"}}  # all others are weights
WEIGHT_TYPES = {"F16", "BF16"}
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
FLAT = {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"}
NESTED = {"Eagle3Speculator", "Eagle3DraftModel"}
NO_SIZES = "sizes are missing or not whole numbers above 0, so that no shape can be checked"
IDS = "eagle_aux_hidden_state_layer_ids"

Faults = Iterator[str]


def check(folder: Path) -> list[str]:
    """Faults of the folder; an empty list is a pass."""
    try:
        record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"config.json cannot be read: {error}"]
    if not isinstance(record, dict):
        return ["config.json is not an object"]
    nested = "speculators_model_type" in record or "speculators_config" in record
    layer = record.get("transformer_layer_config") if nested else record
    if not isinstance(layer, dict):
        return ["transformer_layer_config is missing"]
    faults = [
        *layer_faults(layer),
        *(speculators_faults(record) if nested else eagle_faults(record)),
    ]
    symbols = sizes(record, layer)
    if symbols is None:
        return [*faults, NO_SIZES]
    return [*faults, *tensor_faults(folder, "layers.0." if nested else "midlayer.", symbols)]


# ----------------------------------------------------------------------------------------- config
def layer_faults(layer: Mapping[str, Any]) -> Faults:
    """Faults of the keys that describe the decoder layer."""
    for name in SIZES:
        if not is_size(layer.get(name)):
            yield f"{name} is {layer.get(name)!r}, not a whole number above 0"
    for name, value in (("model_type", "llama"), ("num_hidden_layers", 1), ("hidden_act", "silu")):
        if layer.get(name) != value:
            yield f"{name} is {layer.get(name)!r}, not {value!r}"
    for name in ("rope_theta", "rms_norm_eps", "max_position_embeddings"):
        if not is_number(layer.get(name)):
            yield f"{name} is {layer.get(name)!r}, not a number above 0"
    angles = layer.get("rope_parameters")
    if isinstance(angles, dict) and angles.get("rope_theta") != layer.get("rope_theta"):
        yield (
            f"rope_parameters names rope_theta {angles.get('rope_theta')!r} "
            f"beside {layer.get('rope_theta')!r}"
        )
    if layer.get("tie_word_embeddings") is not False:
        yield "tie_word_embeddings is not false: the output would be taken for the embedding"
    heads = layer.get("num_attention_heads")
    groups = layer.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and is_size(groups) and heads % groups:
        yield f"{heads} heads cannot share {groups} key heads evenly"


def eagle_faults(record: Mapping[str, Any]) -> Faults:
    """Faults of the keys around the layer in EAGLE's dialect."""
    yield from common_faults(record, record, FLAT)
    if record.get("norm_before_residual"):
        yield "norm_before_residual is set, which EAGLE, SpecForge and SGLang do not read"
    if "norm_output" in record:
        yield "norm_output is there, which SpecForge and SGLang understand differently"
    nested = record.get("eagle_config")
    yield from id_faults(nested.get(IDS) if isinstance(nested, dict) else record.get(IDS), -1)


def speculators_faults(record: Mapping[str, Any]) -> Faults:
    """Faults of the keys around the layer in the dialect of speculators."""
    yield from common_faults(record, record["transformer_layer_config"], NESTED)
    if record.get("speculators_model_type") != "eagle3":
        yield f"speculators_model_type is {record.get('speculators_model_type')!r}, not 'eagle3'"
    if not isinstance(record.get("speculators_version"), str):
        yield "speculators_version is missing"
    if not isinstance(record.get("norm_before_residual"), bool):
        yield "norm_before_residual is missing, and readers disagree on its default"
    yield from id_faults(record.get(IDS), 0)
    try:
        config = record["speculators_config"]
        if not is_size(config["proposal_methods"][0]["speculative_tokens"]):
            yield "speculative_tokens is not a whole number above 0"
        if config["algorithm"] != "eagle3":
            yield f"the algorithm is {config['algorithm']!r}, not 'eagle3'"
        if not config["verifier"]["name_or_path"]:
            yield "the verifier has no name"
    except (KeyError, IndexError, TypeError) as error:
        yield f"speculators_config is not complete: {error!r}"


def common_faults(record: Mapping[str, Any], layer: Mapping[str, Any], names: set[str]) -> Faults:
    """Faults of keys that both dialects have at the top."""
    named = record.get("architectures")
    if not (isinstance(named, list) and names.intersection(map(str, named))):
        yield f"architectures is {named!r}, not one of {sorted(names)}"
    draft = record.get("draft_vocab_size")
    vocab = layer.get("vocab_size")
    if (
        not isinstance(draft, int)
        or not is_size(draft)
        or (isinstance(vocab, int) and draft > vocab)
    ):
        yield f"draft_vocab_size is {draft!r}, not a whole number from 1 to {vocab!r}"
    wide = record.get("target_hidden_size")
    if wide is not None and (not is_size(wide) or wide == layer.get("hidden_size")):
        yield f"target_hidden_size is {wide!r}; it is a width other than hidden_size, or left out"
    if record.get("torch_dtype", record.get("dtype")) not in ("float16", "bfloat16"):
        yield "torch_dtype is neither float16 nor bfloat16"


def id_faults(ids: Any, least: int) -> Faults:
    """Faults of the ids of the target's layers, which may be left out."""
    if ids is None:
        return
    if not (
        isinstance(ids, list)
        and len(ids) == 3
        and all(type(layer) is int and layer >= least for layer in ids)
    ):
        yield f"{IDS} is {ids!r}, not three layers"
    elif ids != sorted(ids):
        yield f"{IDS} is {ids!r}, not low, middle, high"


# ---------------------------------------------------------------------------------------- tensors
def sizes(record: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, int] | None:
    """Values of the symbols of the tables; None when sizes are missing."""
    values = [layer.get(name) for name in SIZES]
    draft = record.get("draft_vocab_size")
    target = record.get("target_hidden_size") or layer.get("hidden_size")
    if not all(map(is_size, [*values, draft, target])):
        return None
    width, inner, heads, groups, head, vocab = (int(value) for value in values if value is not None)
    found = {
        "H": width,
        "F": inner,
        "Q": heads * head,
        "K": groups * head,
        "V": vocab,
        "E": 2 * width,
    }
    return found | {"D": int(draft or 0), "T": 3 * int(target or 0)}


def tensor_faults(folder: Path, prefix: str, symbols: Mapping[str, int]) -> Faults:
    """Faults of the tensors' names, shapes and types, and of the maps between the vocabularies."""
    try:
        with safe_open(folder / "model.safetensors", "pt") as file:
            names = set(file.keys())
            found = {name: file.get_slice(name) for name in sorted(names)}
            stored = {name: (part.get_shape(), part.get_dtype()) for name, part in found.items()}
            maps = {name: file.get_tensor(name) for name in MAPS if name in names}
    except (OSError, SafetensorError) as error:
        yield f"model.safetensors cannot be read: {error}"
        return
    whole = symbols["D"] == symbols["V"]  # then the maps are optional
    required = {
        **AROUND,
        **{prefix + name: shape for name, shape in LAYER.items()},
        **({} if whole else MAPS),
    }
    known = {**required, **MAPS, **OPTIONAL}
    yield from (f"{name} is missing" for name in sorted(required.keys() - names))
    yield from (f"{name} does not belong there" for name in sorted(names - known.keys()))
    for name in sorted(names & known.keys()):
        shape, kind = stored[name]
        wanted = [symbols[symbol] for symbol in known[name]]
        if list(shape) != wanted:
            yield f"{name} has shape {list(shape)}, not {wanted}"
        elif kind not in TYPES.get(name, WEIGHT_TYPES):
            wanted_types = " or ".join(sorted(TYPES.get(name, WEIGHT_TYPES)))
            yield f"{name} is stored as {kind}, not {wanted_types}"
        elif name == "d2t":
            yield from map_faults(maps, symbols["V"])


def map_faults(maps: Mapping[str, Any], vocab: int) -> Faults:
    """Faults of d2t, and of t2d where it is present."""
    ids = [draft + offset for draft, offset in enumerate(maps["d2t"].tolist())]
    if not all(0 <= token < vocab for token in ids):
        yield (
            f"d2t leads to tokens outside of the vocabulary of {vocab}: it holds ids, or is damaged"
        )
    elif any(left >= right for left, right in pairwise(ids)):
        yield "d2t leads to tokens that do not ascend: it holds no offsets of sorted tokens"
    elif "t2d" in maps and maps["t2d"].nonzero().flatten().tolist() != ids:
        yield "t2d does not hold the tokens that d2t leads to"


def is_size(value: Any) -> bool:
    """True for a whole number above zero."""
    return type(value) is int and value > 0


def is_number(value: Any) -> bool:
    """True for a number above zero."""
    return type(value) in (int, float) and value > 0
