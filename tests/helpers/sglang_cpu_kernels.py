"""Stand-ins in plain torch for kernels of sgl-kernel, whose wheels hold those for CUDA alone.

As the package `sgl_kernel` on the path they let SGLang's own scheduler, n-gram worker, verification
and memory run on a CPU: attention, the walk through a tree, and copies of cache places are
replaced. A run with them shows that the plug-in and SGLang understand each other, and nothing about
speed or SGLang's kernels.
"""

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

__version__ = "0.4.10"
LIBRARY: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
MODULES = ("allreduce", "attention", "elementwise", "flash_attn", "gemm", "grammar", "kvcacheio",
           "mamba", "memory", "moe", "quantization", "sampling", "scalar_type", "speculative",
           "top_k")  # fmt: skip


def operator(schema: str) -> Callable[[Any], Any]:
    """Register a function as an operator of torch.ops.sgl_kernel."""

    def define(function: Any) -> Any:
        LIBRARY.define(schema)
        LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
        return function

    return define


# ------------------------------------------------------------------------------------- attention
def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Attention of rows [q, heads, d] over keys [k, kv heads, d] that `visible` [q, k] allows."""
    group = query.shape[1] // keys.shape[1]
    keys = keys.float().repeat_interleave(group, 1)
    values = values.float().repeat_interleave(group, 1)
    weights = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    weights = weights.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@operator(
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) out, Tensor keys, "
    "Tensor values, float key_scale, float value_scale, Tensor places, Tensor requests, "
    "Tensor lengths, Tensor news, Tensor starts, int longest, float scale, float cap, bool cross, "
    "int window, Tensor? encoder, Tensor? sinks, Tensor? tree, bool causal) -> ()"
)
def extend_attention(
    query: Tensor, _key: Any, _value: Any, out: Tensor, keys: Tensor, values: Tensor,
    _key_scale: float, _value_scale: float, places: Tensor, requests: Tensor, lengths: Tensor,
    news: Tensor, starts: Tensor, _longest: int, scale: float, _cap: float, _cross: bool,
    _window: int, _encoder: Any, _sinks: Any, tree: Tensor | None, _causal: bool,
) -> None:  # fmt: skip
    """Attention of new rows, whose keys are in the cache: causal, or along a tree's paths."""
    used = 0  # entries of the tree's mask
    for row, request in enumerate(requests.tolist()):
        length, new, start = int(lengths[row]), int(news[row]), int(starts[row])
        where = places[request, :length].long()
        rows = torch.arange(length - new, length)
        visible = torch.arange(length) <= rows[:, None]
        if tree is not None:
            visible[:, length - new :] = tree[used : used + new * new].view(new, new)
            used += new * new
        part = attend(query[start : start + new], keys[where], values[where], visible, scale)
        out[start : start + new] = part.to(out.dtype)


@operator(
    "decode_attention_cpu(Tensor query, Tensor(b!) keys, Tensor(c!) values, float key_scale, "
    "float value_scale, Tensor(a!) out, Tensor? key, Tensor? value, Tensor new, Tensor logits, "
    "Tensor places, Tensor requests, Tensor lengths, float scale, float cap, bool cross, "
    "int window, Tensor? encoder, Tensor? sinks) -> ()"
)
def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, _key_scale: float, _value_scale: float,
    out: Tensor, key: Tensor | None, value: Tensor | None, new: Tensor, _logits: Tensor,
    places: Tensor, requests: Tensor, lengths: Tensor, scale: float, _cap: float, _cross: bool,
    _window: int, _encoder: Any, _sinks: Any,
) -> None:  # fmt: skip
    """Attention of one row of each request, whose key is written first."""
    if key is not None and value is not None:
        keys[new.long()] = key.view(len(new), *keys.shape[1:]).to(keys.dtype)
        values[new.long()] = value.view(len(new), *values.shape[1:]).to(values.dtype)
    for row, request in enumerate(requests.tolist()):
        where = places[request, : int(lengths[row])].long()
        visible = torch.ones(1, len(where), dtype=torch.bool)
        part = attend(query[row : row + 1], keys[where], values[where], visible, scale)
        out[row] = part[0].to(out.dtype)


@operator("init_cpu_threads_env(str cores) -> str")
def init_threads(cores: str) -> str:
    """Bind nothing."""
    return cores


@operator(
    "store_cache_cpu(Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, Tensor places, "
    "int width) -> ()"
)
def store_cache(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor, _width: int
) -> None:
    """Write keys and values into the cache."""
    keys[places] = key.view(-1, *keys.shape[1:])
    values[places] = value.view(-1, *values.shape[1:])


# ---------------------------------------------------------------------------------------- layers
@operator("convert_weight_packed(Tensor weight) -> Tensor")
def convert_weight(weight: Tensor) -> Tensor:
    """Pack nothing; SGLang takes its path of attention with tree masks where this operator is."""
    return weight.clone()


@operator("initialize(int size, int rank) -> ()")
def initialize(_size: int, _rank: int) -> None:
    """Share no memory: there is one rank."""


@operator("rmsnorm_cpu(Tensor x, Tensor weight, float epsilon) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm."""
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


@operator(
    "fused_add_rmsnorm_cpu(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float epsilon) -> ()"
)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    """Add to the residual and norm the sum, both in place."""
    residual += x
    x.copy_(rms_norm(residual, weight, epsilon))


@operator("silu_and_mul_cpu(Tensor x) -> Tensor")
def silu_and_mul(x: Tensor) -> Tensor:
    """The gate's first half, through SiLU, times its second."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@operator(
    "rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int width, Tensor table, "
    "bool halves) -> (Tensor, Tensor)"
)
def rotate(
    positions: Tensor, query: Tensor, key: Tensor, width: int, table: Tensor, halves: bool
) -> tuple[Tensor, Tensor]:
    """Rotary embedding of queries and keys whose heads are rotated by halves."""
    assert halves
    cos, sin = (part[:, None] for part in table[positions.flatten()].chunk(2, -1))

    def rotated(x: Tensor) -> Tensor:
        first, second = x.view(len(cos), -1, width).chunk(2, -1)
        made = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return made.view(x.shape)

    return rotated(query), rotated(key)


@operator(
    "apply_rotary_pos_emb_cpu(Tensor query, Tensor key, Tensor cos, Tensor sin) -> (Tensor, Tensor)"
)
def rotate_by_tables(*_: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse: SGLang's models import it, and Llama does not call it."""
    raise NotImplementedError("apply_rotary_pos_emb_cpu has no stand-in")


# ----------------------------------------------------------------------------------------- trees
def reconstruct_indices_from_tree_mask(
    mask: Tensor, lengths: Tensor, positions: Tensor, index: Tensor, next_token: Tensor,
    next_sibling: Tensor, batch: int, nodes: int,
) -> None:  # fmt: skip
    """Positions and links of trees, from the ancestors of each node."""
    ancestors = mask.view(batch, nodes, nodes) & torch.ones(nodes, nodes, dtype=torch.bool).tril(-1)
    positions.copy_((ancestors.sum(-1) + lengths[:, None]).view(-1))
    index.copy_(torch.arange(batch * nodes).view(batch, nodes))
    next_token.fill_(-1)
    next_sibling.fill_(-1)
    for row in range(batch):
        last: dict[int, int] = {}  # parent -> its last child so far
        for node in range(nodes):
            above = ancestors[row, node].nonzero()
            if not len(above):
                continue
            parent = int(above[-1])
            if parent in last:
                next_sibling[row, last[parent]] = node
            else:
                next_token[row, parent] = node
            last[parent] = node


def verify_tree_greedy_cpu(
    predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor,
    retrive_index: Tensor, retrive_next_token: Tensor, retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:  # fmt: skip
    """Follow the target's likeliest tokens through each tree."""
    wanted = target_predict.reshape(-1)
    for row in range(len(candidates)):
        node = 0
        for depth in range(accept_index.shape[1]):
            place = int(retrive_index[row, node])
            accept_index[row, depth] = place
            accept_token_num[row] = depth
            predicts[place] = wanted[place]
            child = int(retrive_next_token[row, node])
            while child >= 0 and int(candidates[row, child]) != int(wanted[place]):
                child = int(retrive_next_sibling[row, child])
            if child < 0:
                break
            node = child


# ---------------------------------------------------------------------------------- cache places
def assign_extend_cache_locs_cpu(
    requests: Tensor, places: Tensor, starts: Tensor, ends: Tensor, out: Tensor, _width: int
) -> None:
    """Cache places of a span of each request, one after the other."""
    spans = zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True)
    found = torch.cat([places[request, start:end] for request, start, end in spans])
    out[: len(found)] = found.to(out.dtype)


def assign_req_to_token_pool_cpu(
    requests: Tensor, places: Tensor, starts: Tensor, ends: Tensor, news: Tensor, _width: int
) -> None:
    """Set cache places of a span of each request, taken one after the other."""
    used = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        places[request, start:end] = news[used : used + end - start].to(places.dtype)
        used += end - start


def fill_accept_out_cache_loc_cpu(accepted: Tensor, places: Tensor, out: Tensor) -> None:
    """Cache places of the accepted nodes."""
    found = places[accepted[accepted >= 0].long()]
    out[: len(found)] = found.to(out.dtype)


def copy_all_layer_kv_cache_cpu(
    pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    """Copy rows of every layer's cache, all of them read before any is written."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + int(place) * stride, stride) for place in sources]
        for place, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(pointer + place * stride, row, stride)


# ------------------------------------------------------------------------------- everything else
class AbsentKernel:
    """A kernel without a stand-in: SGLang imports many and calls few."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> "AbsentKernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentKernel(f"{self.name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse by name."""
        raise NotImplementedError(f"sgl_kernel.{self.name} has no stand-in")


def __getattr__(name: str) -> Any:
    """A kernel without a stand-in."""
    if name.startswith("__"):
        raise AttributeError(name)
    return AbsentKernel(name)


for module_name in MODULES:
    module = ModuleType(f"sgl_kernel.{module_name}")
    module.__getattr__ = lambda name: getattr(sys.modules["sgl_kernel"], name)  # type: ignore[method-assign]
    sys.modules[module.__name__] = module
