"""From a folder straight to packed layers: no transformers, and no more than one layer in float32 at a time.

What is made is the same to the bit as packing the transformers model. Whatever is not plainly a Llama-like
model, whole and in order, is left to transformers, which runs it or says what is wrong with it.
"""

import contextlib
import ctypes
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch import loudness
from sapwood.backends.torch.config import BIASED, NORMED, Config, read_config
from sapwood.backends.torch.listening import Listener
from sapwood.backends.torch.llama import Layer, Llama, plain, window_of
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.on_disk import OnDisk, Table
from sapwood.backends.torch.packed.linear import available
from sapwood.backends.torch.packed.network import LONGEST, Packed
from sapwood.backends.torch.packed.smooth import TOKENS, even
from sapwood.backends.torch.support import context_of
from sapwood.backends.torch.weights import Weights, find_weights

WORTH = 1 << 24  # weights from which on it pays to remember what was heard of them
PILE = 256 << 20  # bytes of float32 weights after whose packing freed memory is given back
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def open_packed(folder: Path, name: str, load: Callable[[], Any]) -> TorchBackend | None:
    """The model in this folder in packed weights; None where it takes transformers, which `load` loads it with."""
    config, weights = read_config(folder), find_weights(folder)
    if config is None or weights is None or not suits(config, weights):
        return None
    net, most = frame(config, weights), torch.get_num_threads()
    with warnings.catch_warnings(), threads(1):  # hundreds of short steps: on busy cores they would wait for each other
        warnings.simplefilter("ignore")
        network = Packed(net, evened(net, config, weights, most), weights.strips(head_name(config)))
    give_back()
    embedding, head = (Table(matrix.float) for matrix in (net.embedding, net.head))  # few ask for all of them
    model = OnDisk(config, embedding, embedding if config.tie_word_embeddings else head, load)
    return TorchBackend(model, name, network)


def suits(config: Config, weights: Weights) -> bool:
    """True where the packed layers run this model, and its weights are all there and nothing is there twice."""
    twice = config.tie_word_embeddings and HEAD in weights.entries
    runs = plain(config) and context_of(config) <= LONGEST and available()
    return runs and not twice and weights.fit(shapes(config))


# ----------------------------------------------------------------------------------- what is in the files
def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of the whole model, by name."""
    table, vector = (config.vocab_size, config.hidden_size), (config.hidden_size,)
    found: dict[str, tuple[int, ...]] = {EMBEDDING: table, NORM: vector}
    if not config.tie_word_embeddings:
        found[HEAD] = table
    for index in range(config.num_hidden_layers):
        found |= {prefix(index) + name: shape for name, shape in layer_shapes(config).items()}
    return found


def head_name(config: Config) -> str:
    """What the output head is called: where it is the embedding, it is there once."""
    return EMBEDDING if config.tie_word_embeddings else HEAD


def prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{index}."


def layer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, by what follows the prefix."""
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
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
        found |= {f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", queries), ("k", keys), ("v", keys))}
    if config.model_type == NORMED:
        found |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in ("q", "k")}
    return found


# ----------------------------------------------------------------------------------------- the description
def frame(config: Config, weights: Weights) -> Llama:
    """The description without its layers; its tables are views of the files."""
    embedding = weights.view(EMBEDDING)
    return Llama(
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
        norm=weights.copy(NORM),
        head=embedding if config.tie_word_embeddings else weights.view(HEAD),
    )


def evened(net: Llama, config: Config, weights: Weights, most: int) -> Iterator[Layer]:
    """The layers with even channels, one at a time; what was heard, by `most` threads, is kept for the next run."""
    count, kinds = config.num_hidden_layers, config.layer_types
    place = loudness.place_of(weights.files, config.record, TOKENS) if weights.size >= WORTH else None
    known = None if place is None else loudness.recall(place, (count, config.hidden_size))
    hear = Listener(net).hear if known is None else recited(known)
    heard: list[Tensor] = []
    often = max(1, PILE // sum(4 * math.prod(shape) for shape in layer_shapes(config).values()))
    for index in range(count):
        window = window_of(config, kinds[index] if kinds else None)
        layer = layer_of(weights.read(prefix(index) + name for name in layer_shapes(config)), prefix(index), window)
        with threads(most):
            heard.append(hear(layer))
        layer = even(layer, heard[-1])
        yield layer
        del layer  # before the next one is read
        if index % often == often - 1:
            give_back()
    if known is None and place is not None:
        loudness.remember(place, torch.stack(heard))
    give_back()


def recited(known: Tensor) -> Callable[[Layer], Tensor]:
    """What was heard of each layer, one after the other."""
    rows = iter(known)
    return lambda _: next(rows)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def give_back() -> None:
    """Return to the system the memory that was freed: the C library keeps what lies between what is in use."""
    with contextlib.suppress(OSError, AttributeError):  # not every library can
        ctypes.CDLL(None).malloc_trim(0)


def layer_of(tensors: Mapping[str, Tensor], start: str, window: int) -> Layer:
    """One layer, projections of one input fused."""
    found = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
    parts = [f"self_attn.{part}_proj" for part in "qkv"]
    biases = [found[f"{part}.bias"] for part in parts if f"{part}.bias" in found]
    return Layer(
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
