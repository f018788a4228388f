"""A two-layer Llama with random weights as a GGUF file, and the same weights for transformers."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from tests.helpers import byte_tokenizer, tiny_models

# widths are multiples of a block of 32
LAYERS = 2
WIDTH = 64
HEADS = 4
KV_HEADS = 2
INNER = 96
CONTEXT = 4096
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers.": "blk.",
}
# kinds of tokens
CONTROL = 3
NORMAL = 1


def model() -> Any:
    """The weights."""
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "max_position_embeddings": CONTEXT,
    }
    return tiny_models.make(
        "llama",
        vocab_size=byte_tokenizer.SIZE,
        eos_token_id=byte_tokenizer.EOS,
        tie_word_embeddings=False,
        **sizes,
    )


def write(path: Path, kind: str = "F32", merged: bool = False) -> Path:
    """The file, with matrices in this format; transformers reads it if a token is `merged`."""
    made = model()
    file = GGUFWriter(path, "llama")
    file.add_file_type(LlamaFileType.ALL_F32 if kind == "F32" else LlamaFileType[f"MOSTLY_{kind}"])
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(made.config.rms_norm_eps)
    file.add_rope_freq_base(made.config.rope_parameters["rope_theta"])
    file.add_vocab_size(byte_tokenizer.SIZE)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters[-1] = "er" if merged else letters[-1]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([*letters, *byte_tokenizer.SPECIALS])
    file.add_token_types([NORMAL] * len(letters) + [CONTROL] * len(byte_tokenizer.SPECIALS))
    file.add_token_merges(["e r"])  # without "er" in the list, none is ever merged
    file.add_bos_token_id(byte_tokenizer.EOS - 1)
    file.add_eos_token_id(byte_tokenizer.EOS)
    file.add_add_bos_token(False)
    file.add_chat_template(byte_tokenizer.TEMPLATE)
    for name, weight in made.state_dict().items():
        add(file, name, weight.float().numpy(), kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def add(file: GGUFWriter, name: str, weight: Any, kind: str) -> None:
    """One tensor under the name and in the order that llama.cpp wants."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    heads = HEADS if "attn_q." in name else KV_HEADS if "attn_k." in name else 0
    if heads:  # pairs of a rotation lie side by side
        weight = weight.reshape(heads, 2, -1, WIDTH).swapaxes(1, 2).reshape(weight.shape)
    if kind == "F32" or weight.ndim == 1:
        file.add_tensor(name, np.ascontiguousarray(weight, np.float32))
    else:
        form = GGMLQuantizationType[kind]
        file.add_tensor(name, quantize(weight, form), raw_dtype=form)
