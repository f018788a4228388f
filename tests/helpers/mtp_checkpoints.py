"""Tiny random checkpoints with a module for several tokens, laid out as the published ones are."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load

LAYERS = 2
COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": LAYERS + 1,  # the last one becomes the module
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
# layout -> configuration, and whether tensors are named as DeepSeek's or as Qwen3-Next's
LAYOUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek": (
        "DeepseekV3Config",
        {**ROUTED, **LATENT, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1},
        "shared_head",
    ),
    "glm": (
        "Glm4MoeConfig",
        {**ROUTED, "first_k_dense_replace": 1, "head_dim": 8, "use_qk_norm": True},
        "shared_head",
    ),
    "qwen-moe": ("Qwen3MoeConfig", {"num_experts": 4, "head_dim": 8}, "mtp"),
    "qwen": ("Qwen3Config", {"head_dim": 8}, "mtp"),
}


def write(layout: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint of this layout with random weights."""
    kind, options, names = LAYOUTS[layout]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**COMMON, **options, **changes})
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(with_module(load_file(file), names, config.hidden_size), file, {"format": "pt"})
    record = json.loads((folder / "config.json").read_text())
    record["num_hidden_layers"] = LAYERS
    if "layer_types" in record:
        record["layer_types"] = record["layer_types"][:LAYERS]
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def with_module(tensors: dict[str, Tensor], names: str, width: int) -> dict[str, Tensor]:
    """The tensors with the last layer turned into a module."""
    last = f"model.layers.{LAYERS}."
    norms = [1 + 0.2 * torch.randn(width) for _ in range(3)]
    join = 0.3 * torch.randn(width, 2 * width)
    if names == "mtp":
        found = {
            f"mtp.layers.0.{name.removeprefix(last)}" if name.startswith(last) else name: tensor
            for name, tensor in tensors.items()
        }
        keys = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
        added = {f"mtp.{key}.weight": one for key, one in zip(keys, (*norms, join), strict=True)}
    else:
        found = dict(tensors)
        keys = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
        added = {f"{last}{key}.weight": one for key, one in zip(keys, (*norms, join), strict=True)}
        # the published files hold both tables a second time
        added[f"{last}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        added[f"{last}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return found | added


@cache
def target(layout: str) -> TorchBackend:
    """A backend of such a checkpoint, shared by tests."""
    folder = write(layout, Path(mkdtemp()))
    return load(str(folder), device="cpu", dtype="float32")[0]
