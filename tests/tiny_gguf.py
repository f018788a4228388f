"""A two-layer Llama with random weights as a GGUF file, and the same weights for transformers."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from tests import tiny, words

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, CONTEXT = 2, 64, 4, 2, 96, 4096  # widths are multiples of a block of 32
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
CONTROL, NORMAL = 3, 1  # kinds of tokens


def model() -> Any:
    """The weights."""
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": INNER, "max_position_embeddings": CONTEXT}
    return tiny.make("llama", vocab_size=words.SIZE, eos_token_id=words.EOS, tie_word_embeddings=False, **sizes)


def write(path: Path, kind: str = "F32") -> Path:
    """The file, with matrices in this format."""
    made, file = model(), GGUFWriter(path, "llama")
    file.add_file_type(LlamaFileType.ALL_F32 if kind == "F32" else LlamaFileType[f"MOSTLY_{kind}"])
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(made.config.rms_norm_eps)
    file.add_rope_freq_base(made.config.rope_parameters["rope_theta"])
    file.add_vocab_size(words.SIZE)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([*letters, *words.SPECIALS])
    file.add_token_types([NORMAL] * len(letters) + [CONTROL] * len(words.SPECIALS))
    file.add_token_merges(["e r"])  # makes no token of the list, so none is ever merged
    file.add_bos_token_id(words.EOS - 1)
    file.add_eos_token_id(words.EOS)
    file.add_add_bos_token(False)
    file.add_chat_template(words.TEMPLATE)
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
