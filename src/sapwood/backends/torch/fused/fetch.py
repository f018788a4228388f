"""Weights that are on their way before they are asked for.

A small model's pass is not bound by how much is read but by how long each first byte takes. So the weights
of all layers lie one behind the other, in the order in which they are read, and the widest product of each
layer sends for those of the next four, its own counterpart's included: they then come from the device's cache.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import itertools
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.launch import HOPPER, WIDEN
from sapwood.backends.torch.llama import Layer, Llama

PIECE = tl.constexpr(4096)  # bytes of one request
LANES = tl.constexpr(128)  # most requests of one program
ROOM = 12 << 20  # bytes of a layer: a few of them fit every cache that has such requests
ALIGNED = 16  # bytes at which a request, or a row of a product, may begin

# a request, where the third number is not zero
ASK = tl.constexpr("""{
    .reg .pred wanted;
    setp.ne.u32 wanted, $3, 0;
    @wanted cp.async.bulk.prefetch.L2.global [$1], $2;
    mov.u32 $0, 0;
}""")


@triton.jit
def fetch(weights, size, program, programs):
    """Send for this program's share of `size` bytes of weights."""
    if not WIDEN:
        start = (tl.arange(0, LANES).to(tl.int64) * programs + program) * PIECE
        length = tl.minimum(tl.maximum(size - start, 0), PIECE).to(tl.int32)
        place = weights.to(tl.int64) + start
        tl.inline_asm_elementwise(ASK, "=r,l,r,r", [place, length, length], dtype=tl.int32, is_pure=False, pack=1)


def in_order(model: Llama) -> Llama:
    """The model with its layers' weights in one piece, as a pass reads them; itself where that would not pay."""
    if not worth(model):
        return model
    whole = torch.cat([part.flatten() for layer in model.layers for part in parts(layer)])
    layers, start = [], 0
    for layer in model.layers:
        views = []
        for part in parts(layer):
            views.append(whole[start : start + part.numel()].view(part.shape))
            start += part.numel()
        qkv, out, gate_up, down = views
        layers.append(replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down))
    return replace(model, layers=tuple(layers))


def following(model: Llama) -> list[Tensor | None]:
    """For each layer the weights that are read after its gate, up to the next one's, where they lie in order."""
    found: list[Tensor | None] = []
    for layer, after in itertools.zip_longest(model.layers, model.layers[1:]):
        several = [layer.down, *(parts(after)[:3] if after else ())]
        ends = [part.data_ptr() + part.numel() * part.element_size() for part in several]
        behind = all(part.data_ptr() == end for part, end in zip(several[1:], ends, strict=False))
        count = sum(part.numel() for part in several)
        found.append(torch.as_strided(layer.down, (count,), (1,)) if behind and worth(model) else None)
    return found


def parts(layer: Layer) -> tuple[Tensor, ...]:
    """The projections of a layer in the order in which they are read."""
    return layer.qkv, layer.out, layer.gate_up, layer.down


def worth(model: Llama) -> bool:
    """True where sending for weights pays: a device that takes requests, and layers that fit its cache."""
    device = model.embedding.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return False
    sizes = [[part.numel() * part.element_size() for part in parts(layer)] for layer in model.layers]
    return all(sum(several) <= ROOM and not any(size % ALIGNED for size in several) for several in sizes)
