"""Tiny models of other architectures than Llama as GGUF files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize

from tests.helpers import byte_tokenizer, tiny_models

# name of a tiny model -> architecture in GGUF files, options that have to be spelled out there
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3", {"head_dim": 32, "layer_types": None, "sliding_window": 8}),
    "gemma2-eager": ("gemma2", {"head_dim": 32, "layer_types": None, "sliding_window": 8}),
    # the padding token of its default configuration is in the vocabulary
    "phi3": ("phi3", {"sliding_window": None, "vocab_size": 32_064}),
    "qwen3-moe": ("qwen3moe", {"head_dim": 32, "moe_intermediate_size": 768}),
}
LAYERS = 2


def write(path: Path, name: str, kind: str = "Q8_0") -> Path:
    """The file, with matrices in this format."""
    architecture, options = ARCHITECTURES[name]
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "vocab_size": byte_tokenizer.SIZE,
        "tie_word_embeddings": architecture.startswith("gemma"),
    }
    model = tiny_models.make(name, **(sizes | options))
    config = model.config
    file = GGUFWriter(path, architecture)
    file.add_context_length(128)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(config.vocab_size)
    if "head_dim" in options:
        file.add_key_length(config.head_dim)
    if options.get("sliding_window"):
        file.add_sliding_window(config.sliding_window)
    if "moe_intermediate_size" in options:
        file.add_expert_count(config.num_experts)
        file.add_expert_used_count(config.num_experts_per_tok)
    [kind_of] = [key for key, value in MODEL_ARCH_NAMES.items() if value == architecture]
    names = get_tensor_name_map(kind_of, LAYERS)
    for ours, weight in model.state_dict().items():
        if ours == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for theirs, part in parts(ours, weight.float().numpy(), names):
            shift = architecture.startswith("gemma") and theirs.endswith("norm.weight")
            add(file, theirs, part + 1 if shift else part, kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def parts(ours: str, weight: Any, names: Any) -> list[tuple[str, Any]]:
    """The tensors of a parameter; those of experts have gate and up apart."""
    if ours.endswith("experts.gate_up_proj"):
        start = f"blk.{ours.split('.')[2]}.ffn_"
        gate, up = np.split(weight, 2, axis=1)
        return [(f"{start}gate_exps.weight", gate), (f"{start}up_exps.weight", up)]
    stem, _, last = ours.rpartition(".")
    named, suffix = (stem, last) if last in ("weight", "bias") else (ours, "weight")
    return [(f"{names.get_name(named)}.{suffix}", weight)]


def add(file: GGUFWriter, name: str, weight: Any, kind: str) -> None:
    """One tensor; vectors and routers stay floats."""
    weight = np.ascontiguousarray(weight, np.float32)
    if weight.ndim == 1 or "gate_inp" in name:
        file.add_tensor(name, weight)
    else:
        form = GGMLQuantizationType[kind]
        file.add_tensor(name, quantize(weight, form), raw_dtype=form)


def use_byte_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers make this tokenizer of every GGUF file, as these have no vocabulary."""

    def made(**_: Any) -> Any:
        fast: Any = transformers.PreTrainedTokenizerFast  # it has no types
        return fast(tokenizer_object=byte_tokenizer.tokenizer())

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", made)
