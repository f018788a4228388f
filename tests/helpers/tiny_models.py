"""Two-layer models with random weights, one per architecture."""

from functools import cache
from typing import Any

import torch
import transformers

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.tree_attention import register

torch.set_num_threads(1)  # such small passes only wait for a second thread

WINDOW = 5  # shorter than every text used
COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
PARTIAL = {  # half of a head is rotated
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 64,
    "factor": 2.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "truncate": False,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,  # keys and values of different width
    "first_k_dense_replace": 2,
}
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-mixed": ("Qwen2Config", {"use_sliding_window": True, **MIXED}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, **MIXED}),
    "gemma3-caps": (
        "Gemma3TextConfig",
        {"head_dim": 8, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 12, **MIXED},
    ),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "phi3-partial": ("Phi3Config", {"rope_parameters": PARTIAL, "sliding_window": None}),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
        },
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", MIXED),
    "gpt2": ("GPT2Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "phi3": ("Phi3Config", {"sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", {"sliding_window": None, "num_local_experts": 4}),
    "olmoe": ("OlmoeConfig", EXPERTS),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "moe_intermediate_size": 24, "norm_topk_prob": True, **EXPERTS},
    ),
    "gpt-oss-eager": (
        "GptOssConfig",
        {
            "head_dim": 8,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "swiglu_limit": 2.0,  # which gates of random weights reach
            "sliding_window": WINDOW,
            "rope_parameters": YARN,
        },
    ),
    "gemma2-eager": ("Gemma2Config", {"head_dim": 8, "attn_logit_softcapping": 20.0, **MIXED}),
    "deepseek": ("DeepseekV2Config", LATENT),
}


def make(name: str, dtype: torch.dtype = torch.float32, **extra: Any) -> Any:
    """A fresh model; the same name gives the same weights."""
    kind, options = NAMES[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**COMMON, **options, **extra})
    attention = "eager" if name.endswith("eager") else register()
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=attention, dtype=dtype)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # the usual 0.02 would make all laws alike
        elif name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=2.0)  # near the products that they stand beside
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)  # the usual zeros would hide a lost bias
    return model


@cache
def backend(name: str) -> TorchBackend:
    """A backend on the CPU, shared by tests: sessions are apart."""
    return TorchBackend(make(name), name)
