"""What a Llama-like model consists of, read off a transformers model: sizes and fused weights.

The fast paths of this backend, packed on a CPU and fused on a GPU, run this description instead of
the model's own code. What they cannot run exactly as written is not described.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.mask import WHOLE
from sapwood.backends.torch.support import SLIDING

KINDS = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")  # angles that do not depend on the length of the text
GATES = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; projections are [outputs, inputs]."""

    norm: Tensor  # [width], before attention
    qkv: Tensor  # queries, keys and values, one under the other
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head width], on every head
    key_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor  # [width], before the MLP
    gate_up: Tensor  # gate rows, then up rows
    down: Tensor
    window: int  # positions a row sees; WHOLE for all


@dataclass(frozen=True, slots=True)
class Llama:
    """A whole model."""

    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocab: int
    eps: float
    scale: float  # of a query times a key
    rates: Tensor  # [head width / 2] float32, radians per position
    amplitude: float  # of the rotation's cosine and sine
    embedding: Tensor  # [vocab, width]
    layers: tuple[Layer, ...]
    norm: Tensor  # [width], before the output head
    head: Tensor  # [vocab, width]


def describe(model: Any) -> Llama | None:
    """The description of a transformers model; None where it is not Llama-like to the letter."""
    found = frame(model)
    return None if found is None else replace(found, layers=tuple(layers_of(model)))


def frame(model: Any) -> Llama | None:
    """The description without its layers, which are copies of the model's: for those who take one after the other."""
    config = model.config.get_text_config()
    if not plain(config) or any(module.bias is not None for module in unbiased(model)):
        return None
    body = model.model
    first = body.layers[0].self_attn
    return Llama(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=first.head_dim,
        inner=config.intermediate_size,
        vocab=model.lm_head.weight.shape[0],
        eps=config.rms_norm_eps,
        scale=first.scaling,
        rates=body.rotary_emb.inv_freq.float(),
        amplitude=float(body.rotary_emb.attention_scaling),
        embedding=body.embed_tokens.weight.detach(),
        layers=(),
        norm=body.norm.weight.detach(),
        head=model.lm_head.weight.detach(),
    )


def layers_of(model: Any) -> Iterator[Layer]:
    """The layers, projections of one input fused, made one at a time."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    for index, layer in enumerate(model.model.layers):
        yield layer_of(layer, window_of(config, kinds[index] if kinds else None))


def plain(config: Any) -> bool:
    """True when nothing in the configuration asks for more than the layers below do."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in KINDS
        and config.hidden_act in GATES
        and rope.get("rope_type", "default") in STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def unbiased(model: Any) -> list[Any]:
    """The projections that must not carry a bias."""
    found = [model.lm_head]
    for layer in model.model.layers:
        found += [layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
    return found


def window_of(config: Any, kind: str | None) -> int:
    """Positions that a layer of this kind sees; a model without kinds slides in every layer if in any."""
    window = getattr(config, "sliding_window", None) or WHOLE
    return window if kind in (None, SLIDING) else WHOLE


def layer_of(layer: Any, window: int) -> Layer:
    """One layer, projections of one input fused."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        norm=layer.input_layernorm.weight.detach(),
        qkv=torch.cat([part.weight.detach() for part in qkv]),
        qkv_bias=torch.cat([part.bias.detach() for part in qkv]) if qkv[0].bias is not None else None,
        query_norm=None if query_norm is None else query_norm.weight.detach(),
        key_norm=None if key_norm is None else key_norm.weight.detach(),
        out=attention.o_proj.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())),
        down=mlp.down_proj.weight.detach(),
        window=window,
    )
