"""Loads a folder directly into int8 layers, without transformers and one layer at a time.

The result has the same bits as quantising the transformers model. A folder that is not a complete
Llama-like model is left to transformers, which runs it or reports what is wrong.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch import activation_cache
from sapwood.backends.torch.activation_stats import ActivationStats, Embed
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.config import BIASED, NORMED, LlamaConfig, read_config
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.block_linear import float_head, to_blocks
from sapwood.backends.torch.cpu_int8.linear import available
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.cpu_int8.smoothquant import TOKENS, smooth_layer
from sapwood.backends.torch.lazy_model import LazyMatrix, LazyModel
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel, plain, window_of
from sapwood.backends.torch.weights import LayerWeights, TensorFiles, find_weights
from sapwood.common.heap import trim_heap

WORTH = 1 << 24  # weights of a model whose activation statistics are worth caching
PILE = 256 << 20  # bytes of quantised float32 weights after which freed memory is returned
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def open_packed(
    folder: Path, name: str, load: Callable[[], Any], bits: int = 8
) -> TorchBackend | None:
    """An int8 or int4 backend for this folder; None if it needs transformers, by `load`."""
    config = read_config(folder)
    weights = find_weights(folder)
    if config is None or weights is None or not suits(config, weights):
        return None
    if bits < 8 and not int8_gemm.available():
        return None
    net = frame_of(config, weights)
    most = torch.get_num_threads()
    # one thread for hundreds of short steps: on busy cores threads would wait for each other
    with warnings.catch_warnings(), threads(1):
        warnings.simplefilter("ignore")
        strips = weights.strips(head_name(config))
        network = (
            Int8Network(net, smoothed_layers(net, config, weights, most), strips)
            if bits == 8
            else Int8Network(net, map(to_blocks, read_layers(config, weights)), float_head(strips))
        )
    trim_heap()
    # rarely needed as whole matrices
    embedding, head = (LazyMatrix(matrix.float) for matrix in (net.embedding, net.head))
    model = LazyModel(config, embedding, embedding if config.tie_word_embeddings else head, load)
    return TorchBackend(model, name, network)


def suits(config: LlamaConfig, weights: TensorFiles) -> bool:
    """True if int8 layers run this model and its weights are complete, without duplicates."""
    twice = config.tie_word_embeddings and HEAD in weights.entries
    runs = plain(config) and available()
    return runs and not twice and weights.fit(shapes(config))


# ------------------------------------------------------------------------------------ tensor names
def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of the whole model, by name."""
    table = (config.vocab_size, config.hidden_size)
    vector = (config.hidden_size,)
    found: dict[str, tuple[int, ...]] = {EMBEDDING: table, NORM: vector}
    if not config.tie_word_embeddings:
        found[HEAD] = table
    for index in range(config.num_hidden_layers):
        found |= {prefix(index) + name: shape for name, shape in layer_shapes(config).items()}
    return found


def head_name(config: LlamaConfig) -> str:
    """Tensor name of the output head, which may be tied to the embedding."""
    return EMBEDDING if config.tie_word_embeddings else HEAD


def prefix(index: int) -> str:
    """Prefix of a layer's tensor names."""
    return f"model.layers.{index}."


def layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of one layer, by name without the prefix."""
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = (
        count * config.head_dim
        for count in (config.num_attention_heads, config.num_key_value_heads)
    )
    found: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    if config.model_type == BIASED:
        found |= {
            f"self_attn.{part}_proj.bias": (rows,)
            for part, rows in (("q", queries), ("k", keys), ("v", keys))
        }
    if config.model_type == NORMED:
        found |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in ("q", "k")}
    return found


# ------------------------------------------------------------------------------------------ layers
def frame(config: LlamaConfig, embedding: Tensor, norm: Tensor, head: Tensor) -> LlamaModel:
    """The model description without its layers."""
    return LlamaModel(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=config.head_dim,
        inner=config.intermediate_size,
        vocab=config.vocab_size,
        eps=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        rates=config.rates(),
        amplitude=1.0,
        embedding=embedding,
        layers=(),
        norm=norm,
        head=head,
    )


def frame_of(config: LlamaConfig, weights: TensorFiles) -> LlamaModel:
    """The model description without its layers; its matrices are views of the files."""
    embedding = weights.view(EMBEDDING)
    head = embedding if config.tie_word_embeddings else weights.view(HEAD)
    return frame(config, embedding, weights.copy(NORM), head)


def smoothed_layers(
    net: LlamaModel,
    config: LlamaConfig,
    weights: LayerWeights,
    most: int,
    embed: Embed | None = None,
) -> Iterator[LlamaLayer]:
    """Smoothed layers, one at a time; activation statistics, by `most` threads, are cached."""
    count = config.num_hidden_layers
    place = (
        activation_cache.place_of(weights.files, config.record, TOKENS)
        if weights.size >= WORTH
        else None
    )
    known = None if place is None else activation_cache.recall(place, (count, config.hidden_size))
    measure = ActivationStats(net, embed).measure if known is None else cached_stats(known)
    measured: list[Tensor] = []
    for layer in read_layers(config, weights):
        with threads(most):
            measured.append(measure(layer))
        layer = smooth_layer(layer, measured[-1])
        yield layer
        del layer  # free it before the next one is read
    if known is None and place is not None:
        activation_cache.remember(place, torch.stack(measured))
    trim_heap()


def read_layers(config: LlamaConfig, weights: LayerWeights) -> Iterator[LlamaLayer]:
    """The layers, one at a time; freed memory is returned now and then."""
    kinds = config.layer_types
    often = max(1, PILE // sum(4 * math.prod(shape) for shape in layer_shapes(config).values()))
    for index in range(config.num_hidden_layers):
        window = window_of(config, kinds[index] if kinds else None)
        names = (prefix(index) + name for name in layer_shapes(config))
        yield layer_of(weights.read(names), prefix(index), window)
        if index % often == often - 1:
            trim_heap()


def cached_stats(known: Tensor) -> Callable[[LlamaLayer], Tensor]:
    """A function that returns the cached statistics of each layer in turn."""
    rows = iter(known)
    return lambda _: next(rows)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def layer_of(tensors: Mapping[str, Tensor], start: str, window: int) -> LlamaLayer:
    """One layer, projections of one input fused."""
    found = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
    parts = [f"self_attn.{part}_proj" for part in "qkv"]
    biases = [found[f"{part}.bias"] for part in parts if f"{part}.bias" in found]
    return LlamaLayer(
        norm=found["input_layernorm.weight"],
        qkv=torch.cat([found[f"{part}.weight"] for part in parts]),
        qkv_bias=torch.cat(biases) if biases else None,
        query_norm=found.get("self_attn.q_norm.weight"),
        key_norm=found.get("self_attn.k_norm.weight"),
        out=found["self_attn.o_proj.weight"],
        mlp_norm=found["post_attention_layernorm.weight"],
        gate_up=torch.cat((found["mlp.gate_proj.weight"], found["mlp.up_proj.weight"])),
        down=found["mlp.down_proj.weight"],
        window=window,
    )
