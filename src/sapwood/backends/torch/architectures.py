"""Descriptions of architectures beside Llama's, for the int8 and CUDA networks.

A layer is read by the names of its tensors, which are the same in transformers modules and in
files. A model with a tensor or an option that is not known here has no description.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch import llama
from sapwood.backends.torch.hf.support import FULL
from sapwood.backends.torch.llama import (
    GATES,
    STATIC_ROPE,
    LayerExtras,
    LlamaLayer,
    LlamaModel,
    RotaryAngles,
    window_of,
)

# beside those of Llama: up to the context that `context_of` gives, these angles are fixed too
ROPES = (*STATIC_ROPE, "longrope")
ACTIVATIONS = (*GATES, "gelu_pytorch_tanh")
BEFORE = ("input_layernorm", "post_attention_layernorm")
AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
ALL_FOUR = ("input_layernorm", "pre_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class Family:
    """Norms of a model type: names of those before and after attention and MLP, and a shift."""

    before: tuple[str, str] | None = BEFORE
    after: tuple[str, str] | None = None
    shift: float = 0.0  # added to the weights of norms
    scales_embedding: bool = False  # by the square root of the width
    activation: str = ""  # of the gate, where the configuration's is not the whole of it


GEMMA = Family(ALL_FOUR, AFTER, 1.0, scales_embedding=True)
FAMILIES = {
    **dict.fromkeys((*llama.KINDS, "phi3", "smollm3", "granite"), Family()),
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe"), Family()),
    **dict.fromkeys(("olmo2", "olmo3"), Family(None, AFTER)),
    **dict.fromkeys(("gemma2", "gemma3_text"), GEMMA),
    "gpt_oss": Family(activation="swigluoai"),
}
# parts of other architectures that the int8 network lacks
LACKED = {
    "qwen2_moe": "has shared experts",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "has latent attention"),
    **dict.fromkeys(("glm", "glm4"), "rotates neighbouring elements"),
    **dict.fromkeys(("cohere", "cohere2"), "runs attention and MLP side by side"),
    **dict.fromkeys(("starcoder2", "stablelm"), "has norms that subtract the mean"),
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm")
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
QKV_BIASES = tuple(f"self_attn.{part}.bias" for part in ATTENTION[:4])
EXPERTS = ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
# of gpt-oss: experts are [inputs, outputs], those of gate and up in turns
ROUTER, SINKS = "mlp.router.weight", "self_attn.sinks"
OSS = (*EXPERTS[1:], *(f"{name}_bias" for name in EXPERTS[1:]), ROUTER, "mlp.router.bias", SINKS)
MLP = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")


# --------------------------------------------------------------------------------- a whole model
def frame(model: Any) -> LlamaModel | None:
    """The description without its layers; None if the model cannot be run exactly."""
    config = model.config.get_text_config()
    family = FAMILIES.get(config.model_type)
    # a model of images and text keeps its layers one level deeper
    if family is None or "layers" not in dict(model.model.named_children()):
        return None
    if (found := llama.frame(model)) is not None:
        return found
    body = model.model
    if not runs(config) or model.lm_head.bias is not None or unknown(body.layers, family):
        return None
    first = body.layers[0].self_attn
    router = router_of(dict(body.layers[0].named_parameters()))
    angles = [padded(one, first.head_dim) for one in angles_of(config, body.rotary_emb)]
    return LlamaModel(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=first.head_dim,
        inner=body.layers[0].mlp.experts.down_proj.shape[-1]
        if router is not None and not family.activation
        else config.intermediate_size,
        vocab=model.lm_head.weight.shape[0],
        eps=config.rms_norm_eps,
        scale=first.scaling,
        rates=angles[0].rates,
        amplitude=angles[0].amplitude,
        embedding=body.embed_tokens.weight.detach(),
        layers=(),
        norm=shifted(body.norm.weight.detach(), family),
        head=times(model.lm_head.weight.detach(), logit_factor(config)),
        other_angles=tuple(angles[1:]),
        activation=family.activation or activation_of(config),
        gate_slope=getattr(config, "swiglu_alpha", 1.0),
        gate_limit=getattr(config, "swiglu_limit", 0.0),
        embedding_scale=config.hidden_size**0.5
        if family.scales_embedding
        else getattr(config, "embedding_multiplier", 1.0),
        attention_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
        logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
        experts=0 if router is None else len(router),
        chosen=0 if router is None else config.num_experts_per_tok,
        normalised=bool(getattr(config, "norm_topk_prob", True)),
        extended=extended(config, body.layers[0], family),
        cpu_only=bool(family.activation) or multiplied(config),
    )


def layers_of(model: Any) -> Iterator[LlamaLayer]:
    """The layers, projections of one input fused, made one at a time."""
    config = model.config.get_text_config()
    family = FAMILIES[config.model_type]
    for index, layer in enumerate(model.model.layers):
        found = {name: tensor.detach() for name, tensor in layer.named_parameters()}
        yield layer_of(found, family, config, index, layer.self_attn.head_dim)


def describe(model: Any) -> LlamaModel | None:
    """The description with its layers."""
    found = frame(model)
    return None if found is None else replace(found, layers=tuple(layers_of(model)))


def share_weights(model: Any, found: LlamaModel) -> None:
    """Make the model's projections views of the described ones, so that no weight is stored twice.

    Those in another order than the model's stay its own.
    """
    config = model.config.get_text_config()
    for layer, described in zip(model.model.layers, found.layers, strict=True):
        own = dict(layer.named_parameters())
        reordered = rotated_width(config, found.head_width) < found.head_width
        several = [
            (described.out, ("self_attn.o_proj",)),
            (described.gate_up, (*GATE_UP, "mlp.gate_up_proj")),
            (described.down, ("mlp.down_proj",)),
            *([] if reordered else [(described.qkv, (*QKV, "self_attn.qkv_proj"))]),
        ]
        for whole, names in several:
            start = 0
            for part in (own[f"{name}.weight"] for name in names if f"{name}.weight" in own):
                part.data = whole[start : start + len(part)]
                start += len(part)


# --------------------------------------------------------------------------------- configurations
def activation_of(config: Any) -> str:
    """Activation of the gate."""
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def ropes_of(config: Any) -> list[dict[str, Any]]:
    """Rotary options of each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    return [found[kind] for kind in kinds_of(config)] if FULL in found else [found]


def multiplied(config: Any) -> bool:
    """True if sublayers or logits have a factor, which the described weights contain."""
    return logit_factor(config) != 1.0 or getattr(config, "residual_multiplier", 1.0) != 1.0


def has_experts(config: Any) -> bool:
    """True if a router chooses among experts in its layers."""
    return bool(getattr(config, "num_experts_per_tok", None))


def logit_factor(config: Any) -> float:
    """Factor of the logits, which the described output head contains."""
    return 1.0 / float(getattr(config, "logits_scaling", 1.0))


def kinds_of(config: Any) -> list[str]:
    """The kinds of layers with rotary options of their own, in the order of their angles."""
    return sorted(set(config.layer_types))


def runs(config: Any) -> bool:
    """True if the layers below cover everything in the configuration."""
    ropes = ropes_of(config)
    return (
        activation_of(config) in ACTIVATIONS
        and all(rope.get("rope_type", "default") in ROPES for rope in ropes)
        and not getattr(config, "use_bidirectional_attention", False)
        and not getattr(config, "clip_qkv", None)
    )


def missing_part(config: Any) -> str:
    """The reason why the int8 network has no description of a model."""
    if config.model_type not in FAMILIES:
        lacked = LACKED.get(config.model_type)
        which = f", which {lacked}" if lacked else ""
        return f"int8 has no layers for the architecture {config.model_type}{which}"
    if (activation := activation_of(config)) not in ACTIVATIONS:
        return f"int8 lacks its activation {activation}"
    kinds = [str(rope.get("rope_type", "default")) for rope in ropes_of(config)]
    if other := [kind for kind in kinds if kind not in ROPES]:
        return f"int8 lacks its rotary angles {other[0]}"
    return f"int8 lacks a part of this {config.model_type} model"


def unknown(layers: Sequence[Any], family: Family) -> bool:
    """True if some tensor of a layer is not read by `layer_of`."""
    known = {f"self_attn.{part}" for part in ATTENTION} | {f"mlp.{part}" for part in MLP}
    known |= {*(family.before or ()), *(family.after or ())}
    names = [{name for name, _ in layer.named_parameters()} for layer in layers]
    whole = set(OSS if family.activation else EXPERTS)
    # all layers have experts, or none has
    return any(found != names[0] for found in names) or any(
        name.rpartition(".")[0] not in known for name in names[0] - whole
    )


def extended(config: Any, layer: Any, family: Family) -> bool:
    """True if the model needs more than Llama's pass."""
    found = dict(layer.named_parameters())
    biased = {name for name in found if name.endswith(".bias")} - set(QKV_BIASES)
    row_norm = found.get("self_attn.q_norm.weight")
    return (
        family.after is not None
        or activation_of(config) not in GATES
        or bool(biased)
        or router_of(found) is not None
        or (row_norm is not None and len(row_norm) != layer.self_attn.head_dim)
    )


def angles_of(config: Any, rotary: Any) -> list[RotaryAngles]:
    """Rotary angles of the layers: one for all, or one for each kind of layer; none at last."""
    if len(ropes_of(config)) > 1 or FULL in (getattr(config, "rope_parameters", None) or {}):
        names = [f"{kind}_" for kind in kinds_of(config)]
    else:
        names = [""]
    found = [
        RotaryAngles(
            getattr(rotary, f"{name}inv_freq").float(),
            float(getattr(rotary, f"{name}attention_scaling")),
        )
        for name in names
    ]
    if not all(getattr(config, "no_rope_layers", None) or (1,)):
        found.append(RotaryAngles(torch.zeros_like(found[0].rates), 1.0))
    return found


def padded(angles: RotaryAngles, head_width: int) -> RotaryAngles:
    """Angles of whole heads: elements that are not rotated have the rate 0."""
    missing = head_width // 2 - len(angles.rates)
    return replace(angles, rates=torch.nn.functional.pad(angles.rates, (0, missing)))


def rotary_of(config: Any, index: int) -> int:
    """Index of a layer's angles among those of `angles_of`."""
    ropes = ropes_of(config)
    if not (getattr(config, "no_rope_layers", None) or {index: 1})[index]:
        return len(ropes)
    return kinds_of(config).index(config.layer_types[index]) if len(ropes) > 1 else 0


def rotated_width(config: Any, head_width: int) -> int:
    """Elements of a head that are rotated."""
    return int(head_width * float(ropes_of(config)[0].get("partial_rotary_factor", 1.0)))


# ------------------------------------------------------------------------------------------ layers
def layer_of(
    found: Mapping[str, Tensor], family: Family, config: Any, index: int, head_width: int
) -> LlamaLayer:
    """A layer of tensors by their names, projections of one input fused."""
    kinds = getattr(config, "layer_types", None)
    qkv = fused(found, QKV, "self_attn.qkv_proj", "weight")
    bias = fused(found, QKV, "self_attn.qkv_proj", "bias")
    assert qkv is not None
    rotated = rotated_width(config, head_width)
    turned = config.num_attention_heads + config.num_key_value_heads
    order = pair_order(head_width, rotated, turned) if rotated < head_width else None
    gates, down = mlp_of(found)
    # where there are none, the int8 network reads none
    norms = (
        pair_of([norm_of(found, name, family) for name in family.before or ()])
        or (torch.ones(qkv.shape[1], device=qkv.device),) * 2
    )
    head_norms = [norm_of(found, f"self_attn.{part}_norm", family) for part in "qk"]
    whole_row = head_norms[0] is not None and len(head_norms[0]) != head_width
    extras = extras_of(found, family, head_norms if whole_row else None)
    factor = getattr(config, "residual_multiplier", 1.0)
    extras = replace(
        extras,
        out_bias=None if extras.out_bias is None else times(extras.out_bias, factor),
        down_bias=None if extras.down_bias is None else times(extras.down_bias, factor),
    )
    return LlamaLayer(
        norm=norms[0],
        qkv=reordered(qkv, order),
        qkv_bias=None if bias is None else reordered(bias, order),
        query_norm=None if whole_row else head_norms[0],
        key_norm=None if whole_row else head_norms[1],
        out=times(found["self_attn.o_proj.weight"], factor),
        mlp_norm=norms[1],
        gate_up=gates,
        down=times(down, factor),
        window=window_of(config, kinds[index] if kinds else None),
        rotary=rotary_of(config, index),
        extras=extras if is_extended(extras) else None,
    )


def mlp_of(found: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Gate and up one under the other, and down; of experts, [experts, outputs, inputs]."""
    if EXPERTS[0] in found:
        return found[EXPERTS[1]], found[EXPERTS[2]]
    if ROUTER in found:
        return halves(found[EXPERTS[1]].transpose(1, 2)), found[EXPERTS[2]].transpose(1, 2)
    gates = fused(found, GATE_UP, "mlp.gate_up_proj", "weight")
    assert gates is not None
    return gates, found["mlp.down_proj.weight"]


def router_of(found: Mapping[str, Tensor]) -> Tensor | None:
    """The router of a layer, [experts, width]; None without experts."""
    return found.get(EXPERTS[0], found.get(ROUTER))


def halves(turns: Tensor) -> Tensor:
    """Gate and up one under the other, where the file of gpt-oss has them in turns.

    [experts, outputs] or [experts, outputs, inputs].
    """
    return torch.cat((turns[:, ::2], turns[:, 1::2]), 1)


def extras_of(
    found: Mapping[str, Tensor], family: Family, row_norms: Sequence[Tensor | None] | None
) -> LayerExtras:
    """Parts of a layer that Llama's lacks."""
    after = [norm_of(found, name, family) for name in family.after or ()]
    gate_up_bias = fused(found, GATE_UP, "mlp.gate_up_proj", "bias")
    if f"{EXPERTS[1]}_bias" in found:
        gate_up_bias = halves(found[f"{EXPERTS[1]}_bias"])
    return LayerExtras(
        pre_norms=family.before is not None,
        post_norms=pair_of(after),
        row_norms=pair_of(row_norms or ()),
        out_bias=found.get("self_attn.o_proj.bias"),
        gate_up_bias=gate_up_bias,
        down_bias=found.get("mlp.down_proj.bias", found.get(f"{EXPERTS[2]}_bias")),
        router=router_of(found),
        router_bias=found.get("mlp.router.bias"),
        sinks=found.get(SINKS),
    )


def is_extended(extras: LayerExtras) -> bool:
    """True if there is any such part."""
    parts = (extras.post_norms, extras.row_norms, extras.out_bias, extras.gate_up_bias)
    more = (extras.down_bias, extras.router, extras.sinks)
    return not extras.pre_norms or any(part is not None for part in (*parts, *more))


def pair_of(parts: Sequence[Tensor | None]) -> tuple[Tensor, Tensor] | None:
    """Two tensors, if there are any."""
    found = [part for part in parts if part is not None]
    return (found[0], found[1]) if found else None


def norm_of(found: Mapping[str, Tensor], name: str, family: Family) -> Tensor | None:
    """The weights of a norm as they multiply; None if there is none."""
    weight = found.get(f"{name}.weight")
    return None if weight is None else shifted(weight, family)


def shifted(weight: Tensor, family: Family) -> Tensor:
    """The weights of a norm with the shift of their family, which 16 bits would round."""
    return weight.float() + family.shift if family.shift else weight


def times(weight: Tensor, factor: float) -> Tensor:
    """Weights with a factor; the same tensor without one."""
    return weight if factor == 1.0 else weight.float() * factor


def fused(
    found: Mapping[str, Tensor], parts: Sequence[str], whole: str, kind: str
) -> Tensor | None:
    """Projections of one input, one under the other; None if they are absent."""
    if f"{whole}.{kind}" in found:
        return found[f"{whole}.{kind}"]
    if f"{parts[0]}.{kind}" not in found:
        return None
    return torch.cat([found[f"{part}.{kind}"] for part in parts])


def pair_order(head_width: int, rotated: int, heads: int) -> Tensor:
    """Order of the outputs of queries and keys that puts rotated pairs half a head apart.

    A model that rotates the first `rotated` elements of a head pairs those `rotated / 2` apart. The
    same order of queries and keys leaves their products as they are.
    """
    half = rotated // 2
    rest = range(rotated, head_width)
    middle = head_width // 2 - half
    order = [*range(half), *rest[:middle], *range(half, rotated), *rest[middle:]]
    return torch.cat([torch.tensor(order) + head * head_width for head in range(heads)])


def reordered(qkv: Tensor, order: Tensor | None) -> Tensor:
    """Outputs of queries and keys in this order; values stay as they are."""
    return qkv if order is None else torch.cat((qkv[order], qkv[len(order) :]))
