"""Description of a Llama-like model: sizes and fused weights.

The int8 and CUDA networks run this description instead of transformers code. A model that they
cannot run exactly has no description.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.hf.support import SLIDING
from sapwood.backends.torch.network import WHOLE

KINDS = ("llama", "mistral", "qwen2", "qwen3")
# RoPE types whose angles do not depend on the length of the text
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
GATES = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class LayerExtras:
    """Parts of a layer that Llama's lacks; the int8 network's extended pass runs them."""

    pre_norms: bool = True  # False: attention and MLP read the residual stream as it is
    post_norms: tuple[Tensor, Tensor] | None = None  # of the outputs of attention and MLP, [width]
    row_norms: tuple[Tensor, Tensor] | None = None  # over all queries and all keys of a row
    out_bias: Tensor | None = None  # [width]
    gate_up_bias: Tensor | None = None  # [outputs]; of experts, [experts, outputs]
    down_bias: Tensor | None = None  # [width]; of experts, [experts, width]
    router: Tensor | None = None  # [experts, width]; gate_up and down then have an axis of experts
    router_bias: Tensor | None = None  # [experts]
    sinks: Tensor | None = None  # [heads], logits that join the softmax and take no value


@dataclass(frozen=True, slots=True)
class RotaryAngles:
    """Rotary angles of some layers."""

    rates: Tensor  # [head width / 2] float32, radians per position; 0 for what is not rotated
    amplitude: float  # of cosine and sine where it is


@dataclass(frozen=True, slots=True)
class LlamaLayer:
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
    rotary: int = 0  # 0: the model's angles; i: the i-th of its other ones
    extras: LayerExtras | None = None


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Sizes, layers and matrices of a model."""

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
    layers: tuple[LlamaLayer, ...]
    norm: Tensor  # [width], before the output head
    head: Tensor  # [vocab, width]
    other_angles: tuple[RotaryAngles, ...] = ()  # of layers with angles of their own
    activation: str = "silu"  # of the gate
    gate_slope: float = 1.0  # of the gate in the sigmoid of "swigluoai"
    gate_limit: float = 0.0  # to which that clamps gate and up; 0 for none
    embedding_scale: float = 1.0
    attention_cap: float = 0.0  # soft cap of a query times a key; 0 for none
    logit_cap: float = 0.0
    experts: int = 0  # of each MLP; 0: there is one
    chosen: int = 0  # experts of a row
    normalised: bool = True  # the shares of a row's experts add up to 1
    extended: bool = False  # True if some layer has extras, or the model more than a Llama
    cpu_only: bool = False  # True if it has parts that the CUDA network lacks, such as sinks

    @property
    def angles(self) -> tuple[RotaryAngles, ...]:
        """All rotary angles, in the order of `LlamaLayer.rotary`."""
        return (RotaryAngles(self.rates, self.amplitude), *self.other_angles)


def describe(model: Any) -> LlamaModel | None:
    """The description of a transformers model; None if it is not Llama-like."""
    found = frame(model)
    return None if found is None else replace(found, layers=tuple(layers_of(model)))


def frame(model: Any) -> LlamaModel | None:
    """The description without its layers, which `layers_of` copies one at a time."""
    config = model.config.get_text_config()
    if not plain(config) or any(module.bias is not None for module in unbiased(model)):
        return None
    body = model.model
    first = body.layers[0].self_attn
    return LlamaModel(
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


def layers_of(model: Any) -> Iterator[LlamaLayer]:
    """The layers, projections of one input fused, made one at a time."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    for index, layer in enumerate(model.model.layers):
        yield layer_of(layer, window_of(config, kinds[index] if kinds else None))


def plain(config: Any) -> bool:
    """True if the layers below cover everything in the configuration."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in KINDS
        and config.hidden_act in GATES
        and rope.get("rope_type", "default") in STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def unbiased(model: Any) -> list[Any]:
    """The projections that must not have a bias."""
    found = [model.lm_head]
    for layer in model.model.layers:
        found += [
            layer.self_attn.o_proj,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
            layer.mlp.down_proj,
        ]
    return found


def window_of(config: Any, kind: str | None) -> int:
    """Window of a layer of this type; without types, all layers have the model's window."""
    window = getattr(config, "sliding_window", None) or WHOLE
    return window if kind in (None, SLIDING) else WHOLE


def layer_of(layer: Any, window: int) -> LlamaLayer:
    """One layer, projections of one input fused."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return LlamaLayer(
        norm=layer.input_layernorm.weight.detach(),
        qkv=torch.cat([part.weight.detach() for part in qkv]),
        qkv_bias=torch.cat([part.bias.detach() for part in qkv])
        if qkv[0].bias is not None
        else None,
        query_norm=None if query_norm is None else query_norm.weight.detach(),
        key_norm=None if key_norm is None else key_norm.weight.detach(),
        out=attention.o_proj.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())),
        down=mlp.down_proj.weight.detach(),
        window=window,
    )
