"""Reads GGUF files onto a CUDA device in their own bits.

Q4_0, Q4_1, Q8_0 and Q4_K are read as on the CPU, the first three to the bit; other kinds are
rounded to 8 bits with a scale for 32 weights, and so are matrices in one product with those.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sapwood.backends.torch.config import LlamaConfig
from sapwood.backends.torch.cpu_int8 import block_tile
from sapwood.backends.torch.cpu_int8.block_gemm import BlockStrip
from sapwood.backends.torch.cpu_int8.block_quant import to_eight
from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.quant_load import backend_of
from sapwood.backends.torch.fast_load import EMBEDDING, HEAD, NORM, frame, prefix
from sapwood.backends.torch.gguf_blocks import FORMS as FOUR_BITS
from sapwood.backends.torch.gguf_blocks import NAMES, GgufMatrix
from sapwood.backends.torch.gguf_load import GgufTensors
from sapwood.backends.torch.llama import LlamaLayer, window_of
from sapwood.backends.torch.quant_weight import (
    MIDDLE4,
    MIDDLE8,
    MINIMUM4,
    ZERO4,
    ZERO8,
    QuantWeight,
    joined,
    stacked,
)
from sapwood.common.gguf_header import GgufHeader

GROUP = block_tile.GROUP
FORMS = {
    block_tile.MIN4: MINIMUM4,
    block_tile.SIGNED4: ZERO4,
    block_tile.SIGNED8: ZERO8,
}
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
# parts of one projection in a file
TOGETHER = {"attn_q": "qkv", "attn_k": "qkv", "attn_v": "qkv", "ffn_gate": "gate", "ffn_up": "gate"}


def load_gguf(
    path: Path,
    header: GgufHeader,
    config: LlamaConfig,
    name: str,
    device: torch.device,
    dtype: torch.dtype,  # of activations
    load: Callable[[], Any],
) -> CudaBackend:
    """A backend for a file that is read layer by layer; `load` loads the transformers model."""
    tensors = GgufTensors(path, header, config)
    embedding = tensors.matrix(EMBEDDING)
    head = embedding if config.tie_word_embeddings else tensors.matrix(HEAD)
    table = torch.from_numpy(embedding.floats()).to(dtype)
    net = frame(config, table, tensors.vector(NORM).to(dtype), table)

    def layers() -> Iterator[LlamaLayer]:
        for index in range(config.num_hidden_layers):
            yield read_layer(tensors, config, index, device, dtype)

    return backend_of(
        net, tuple(layers()), weight_of([head]).to(device), config, name, "int4", device, load
    )


def read_layer(
    tensors: GgufTensors, config: LlamaConfig, index: int, device: torch.device, dtype: torch.dtype
) -> LlamaLayer:
    """One layer, projections of one input fused."""
    start = prefix(index)
    kinds = config.layer_types

    def vector(part: str) -> Tensor | None:
        found = tensors.vector_or_none(start + part)
        return None if found is None else found.to(device, dtype)

    biases = [vector(f"{part}.bias") for part in PARTS["qkv"]]
    there = [bias for bias in biases if bias is not None]
    nothing = torch.empty(0)
    layer = LlamaLayer(
        norm=tensors.vector(start + "input_layernorm.weight").to(device, dtype),
        qkv=nothing,
        qkv_bias=torch.cat(there) if there else None,
        query_norm=vector("self_attn.q_norm.weight"),
        key_norm=vector("self_attn.k_norm.weight"),
        out=nothing,
        mlp_norm=tensors.vector(start + "post_attention_layernorm.weight").to(device, dtype),
        gate_up=nothing,
        down=nothing,
        window=window_of(config, kinds[index] if kinds else None),
    )
    parts = {
        name: weight_of([tensors.matrix(f"{start}{part}.weight") for part in names]).to(device)
        for name, names in PARTS.items()
    }
    return replace(layer, **cast(Any, parts))


def weight_of(matrices: Sequence[GgufMatrix]) -> QuantWeight:
    """Matrices of a file one under the other; in 8 bits if their forms differ."""
    mixed = len({matrix.form for matrix in matrices}) > 1
    parts = [
        strip_weight(
            to_eight(strip.exact()) if mixed and strip.form != block_tile.SIGNED8 else strip,
            matrix.inputs,
        )
        for matrix in matrices
        for strip in matrix.strips()
    ]
    return stacked(parts)


def mixed_kinds(header: GgufHeader) -> str:
    """Words for 4-bit matrices that are rounded to 8 bits beside others; empty if none is."""
    found: dict[str, set[int]] = {}
    for tensor in header.tensors:
        block, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        if len(tensor.shape) == 2 and part in TOGETHER:
            found.setdefault(f"{block} {TOGETHER[part]}", set()).add(tensor.kind)
    kinds = [those for those in found.values() if len({form_of(kind) for kind in those}) > 1]
    if not kinds:
        return ""
    names = sorted({NAMES[kind] for those in kinds for kind in those if kind in FOUR_BITS})
    return f"{len(kinds)} of its fused {' and '.join(names)} matrices in 8 bits"


def form_of(kind: int) -> int:
    """Form of the blocks of a kind of tensors."""
    return FOUR_BITS.get(kind, block_tile.SIGNED8)


def strip_weight(strip: BlockStrip, inputs: int) -> QuantWeight:
    """Rows in groups of 32 as the kernels read them."""
    middle = MIDDLE8 if strip.form == block_tile.SIGNED8 else MIDDLE4
    least = middle if strip.least is None else torch.from_numpy(strip.least).T
    return QuantWeight(
        FORMS[strip.form],
        strip.outputs,
        inputs,
        GROUP,
        torch.from_numpy(strip.weights).transpose(0, 1),
        joined(torch.from_numpy(strip.scales).T, least),
    )
