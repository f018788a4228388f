"""L2 prefetch of the weights that are read next.

A pass of a small model is bound by the latency of first bytes, not by bandwidth. So the weights of
all layers lie one behind the other, in the order in which they are read, and the widest product of
each layer prefetches those of the next four products.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import itertools
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.launch import HOPPER, WIDEN
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel

PIECE = tl.constexpr(4096)  # bytes of one prefetch
LANES = tl.constexpr(128)  # most prefetches of one program
ROOM = 12 << 20  # most bytes of a layer: a few layers fit the L2 cache
ALIGNED = 16  # alignment in bytes of a prefetch, or a row of a product

# a prefetch, if the third operand is not zero
ASK = tl.constexpr("""{
    .reg .pred wanted;
    setp.ne.u32 wanted, $3, 0;
    @wanted cp.async.bulk.prefetch.L2.global [$1], $2;
    mov.u32 $0, 0;
}""")


@triton.jit
def fetch(weights, size, program, programs):
    """Prefetch this program's share of `size` bytes of weights."""
    if not WIDEN:
        start = (tl.arange(0, LANES).to(tl.int64) * programs + program) * PIECE
        length = tl.minimum(tl.maximum(size - start, 0), PIECE).to(tl.int32)
        place = weights.to(tl.int64) + start
        tl.inline_asm_elementwise(
            ASK, "=r,l,r,r", [place, length, length], dtype=tl.int32, is_pure=False, pack=1
        )


def in_order(model: LlamaModel) -> LlamaModel:
    """The model with all weights in one tensor in reading order; itself if that does not pay."""
    if not worth(model):
        return model
    whole = torch.cat([part.flatten() for layer in model.layers for part in parts(layer)])
    layers = []
    start = 0
    for layer in model.layers:
        views = []
        for part in parts(layer):
            views.append(whole[start : start + part.numel()].view(part.shape))
            start += part.numel()
        qkv, out, gate_up, down = views
        layers.append(replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down))
    return replace(model, layers=tuple(layers))


def following(model: LlamaModel) -> list[Tensor | None]:
    """For each layer the weights read after its gate, up to the next gate, if they are in order."""
    found: list[Tensor | None] = []
    for layer, after in itertools.zip_longest(model.layers, model.layers[1:]):
        several = [layer.down, *(parts(after)[:3] if after else ())]
        ends = [part.data_ptr() + part.numel() * part.element_size() for part in several]
        behind = all(part.data_ptr() == end for part, end in zip(several[1:], ends, strict=False))
        count = sum(part.numel() for part in several)
        found.append(
            torch.as_strided(layer.down, (count,), (1,)) if behind and worth(model) else None
        )
    return found


def parts(layer: LlamaLayer) -> tuple[Tensor, ...]:
    """The projections of a layer in the order in which they are read."""
    return layer.qkv, layer.out, layer.gate_up, layer.down


def worth(model: LlamaModel) -> bool:
    """True when prefetching pays: a device that supports it, and layers that fit its cache."""
    device = model.embedding.device
    if model.experts:  # which of them are read is not known before
        return False
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return False
    sizes = [
        [part.numel() * part.element_size() for part in parts(layer)] for layer in model.layers
    ]
    return all(
        sum(several) <= ROOM and not any(size % ALIGNED for size in several) for several in sizes
    )
