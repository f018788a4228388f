"""The forward pass of a described model in double precision, written as its definition."""

import torch
from torch.nn import functional as F

from sapwood.backends.torch.llama import LayerExtras, LlamaLayer, LlamaModel, RotaryAngles

GATES = {"silu": F.silu, "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh")}


def rotated(x: torch.Tensor, rows: torch.Tensor, angles: RotaryAngles) -> torch.Tensor:
    """x [heads, rows, width] turned by the angles of these positions."""
    left, right = x.chunk(2, -1)
    turns = rows[:, None].double() * angles.rates.double()
    amplitude = torch.where(angles.rates > 0, angles.amplitude, 1.0)
    cos = turns.cos() * amplitude
    sin = turns.sin() * amplitude
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer in double precision."""
    return F.linear(x, weight.double(), None if bias is None else bias.double())


def normed(x: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm over the last axis; x itself without a norm."""
    return x if norm is None else F.rms_norm(x, x.shape[-1:], norm.double(), eps)


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """x with a soft cap; 0 for none."""
    return x if cap == 0 else cap * (x / cap).tanh()


def attended(net: LlamaModel, layer: LlamaLayer, x: torch.Tensor) -> torch.Tensor:
    """Outputs of attention, [rows, width]."""
    extras = layer.extras or LayerExtras()
    rows = torch.arange(len(x))
    y = linear(x, layer.qkv, layer.qkv_bias)
    parts = [count * net.head_width for count in (net.heads, net.kv_heads, net.kv_heads)]
    q, k, v = torch.split(y, parts, -1)
    if extras.row_norms is not None:
        q, k = (
            normed(part, norm, net.eps) for part, norm in zip((q, k), extras.row_norms, strict=True)
        )
    q, k, v = (part.view(len(x), -1, net.head_width).transpose(0, 1) for part in (q, k, v))
    q, k = normed(q, layer.query_norm, net.eps), normed(k, layer.key_norm, net.eps)
    q, k = (rotated(part, rows, net.angles[layer.rotary]) for part in (q, k))
    k, v = (part.repeat_interleave(net.heads // net.kv_heads, 0) for part in (k, v))
    gap = rows[:, None] - rows
    seen = (gap >= 0) & ((gap < layer.window) if layer.window else True)
    scores = capped(q @ k.transpose(1, 2) * net.scale, net.attention_cap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if extras.sinks is not None:  # one more column, which has no value
        column = extras.sinks.double()[:, None, None].expand(-1, len(x), 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., : len(x)]
    return linear((weights @ v).transpose(0, 1).flatten(1), layer.out, extras.out_bias)


def gated(
    net: LlamaModel,
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
) -> torch.Tensor:
    """Outputs of an MLP, [rows, width]."""
    gate, more = linear(x, up, biases[0]).chunk(2, -1)
    if net.activation == "swigluoai":
        gate = gate.clamp(max=net.gate_limit)
        gate = gate * torch.sigmoid(net.gate_slope * gate)
        return linear((more.clamp(-net.gate_limit, net.gate_limit) + 1) * gate, down, biases[1])
    return linear(GATES[net.activation](gate) * more, down, biases[1])


def mixed(net: LlamaModel, x: torch.Tensor, layer: LlamaLayer, extras: LayerExtras) -> torch.Tensor:
    """Outputs of the experts that the router chooses, [rows, width]."""
    assert extras.router is not None
    shares, picks = linear(x, extras.router, extras.router_bias).softmax(-1).topk(net.chosen)
    if net.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    absent = [None] * net.experts
    biases = [
        absent if bias is None else list(bias) for bias in (extras.gate_up_bias, extras.down_bias)
    ]
    every = [
        gated(net, x, layer.gate_up[e], layer.down[e], (biases[0][e], biases[1][e]))
        for e in range(net.experts)
    ]
    outputs = torch.stack(every, 1)  # [rows, experts, width]
    rows = torch.arange(len(x))[:, None]
    return (outputs[rows, picks] * shares[..., None]).sum(1)


def reference_logits(net: LlamaModel, tokens: torch.Tensor) -> torch.Tensor:
    """The definition, in as few words as possible."""
    x = net.embedding.double()[tokens] * net.embedding_scale
    for layer in net.layers:
        extras = layer.extras or LayerExtras()
        after = extras.post_norms or (None, None)
        before = (layer.norm, layer.mlp_norm) if extras.pre_norms else (None, None)
        y = attended(net, layer, normed(x, before[0], net.eps))
        x = x + normed(y, after[0], net.eps)
        inputs = normed(x, before[1], net.eps)
        if extras.router is None:
            biases = (extras.gate_up_bias, extras.down_bias)
            y = gated(net, inputs, layer.gate_up, layer.down, biases)
        else:
            y = mixed(net, inputs, layer, extras)
        x = x + normed(y, after[1], net.eps)
    return capped(linear(normed(x, net.norm, net.eps), net.head), net.logit_cap)
