"""Reads a GGUF file into block layers as it is, or into int8 layers, without a float32 copy.

As it is: models whose matrices can stay in the file's order, with kinds of tensors that have
products here. Into int8: all models with int8 layers. The others are left to the conversion.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.architectures import FAMILIES, missing_part
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.config import LlamaConfig, ModelFacts, read_config
from sapwood.backends.torch.cpu_int8 import int8_file, int8_gemm
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear, PackedLayer
from sapwood.backends.torch.cpu_int8.embedding_table import GROUP, EmbeddingTable
from sapwood.backends.torch.cpu_int8.extended_network import ExtendedNetwork
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.fast_load import (
    EMBEDDING,
    HEAD,
    NORM,
    WORTH,
    frame,
    prefix,
    shapes,
    smoothed_layers,
    threads,
)
from sapwood.backends.torch.gguf import INT8_WEIGHTS
from sapwood.backends.torch.gguf_blocks import (
    EXACT,
    FLOATS,
    FORMS,
    NAMES,
    PERMUTED,
    GgufMatrix,
    floats_of,
)
from sapwood.backends.torch.lazy_model import LazyMatrix, LazyModel
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel, plain, window_of
from sapwood.backends.torch.silence import quiet
from sapwood.common.gguf_header import GgufHeader, TensorInfo
from sapwood.common.heap import trim_heap

if TYPE_CHECKING:
    from sapwood.backends.torch.gguf_modules import GgufModules

# tensor names of transformers -> of GGUF files; layers come below
TOP = {EMBEDDING: "token_embd.weight", NORM: "output_norm.weight", HEAD: "output.weight"}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FUSED = ("attn_q", "attn_k", "ffn_gate")  # others lie under these in one matrix
NO_PRODUCTS = "its products cannot be run here"
INCOMPLETE = "its configuration is incomplete"


def file_name(name: str) -> str:
    """Name in GGUF files of a tensor of transformers."""
    if name in TOP:
        return TOP[name]
    _, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{PARTS[part]}.{kind}"


def other_kinds(header: GgufHeader) -> str:
    """The reason why a file's kinds of tensors are not read as they are; empty if they are."""
    kinds = {tensor.kind for tensor in header.tensors}
    if other := kinds - NAMES.keys() - set(FLOATS):
        return f"tensors of its kind {min(other)} have no products here"
    return "" if kinds & NAMES.keys() else "its weights are floats"


def missing_reason(config: LlamaConfig | None, header: GgufHeader) -> str:
    """The reason why a model is not read from its file layer by layer; empty if it is."""
    if config is not None and plain(config) and not int8_gemm.available():
        return NO_PRODUCTS
    return other_tensors(config, header)


def other_tensors(config: LlamaConfig | None, header: GgufHeader) -> str:
    """The reason why a file's tensors are not those of plain layers; empty if they are."""
    if config is None or not plain(config):
        return f"its layers ({header.architecture}) have no products here"
    found = {tensor.name: tensor for tensor in header.tensors}
    wanted = {file_name(name): shape for name, shape in shapes(config).items()}
    if any(name not in found or found[name].shape[::-1] != wanted[name] for name in wanted):
        return "its tensors are not those of its architecture"
    if found.keys() - wanted.keys():
        return f"it has another tensor, {min(found.keys() - wanted.keys())}"
    return ""


def uneven(header: GgufHeader) -> str:
    """The reason why a file's matrices cannot be fused as they are; empty if they can."""
    above = [tensor for tensor in header.tensors if tensor.name.split(".")[-2] in FUSED]
    if any(tensor.shape[-1] % BLOCK for tensor in above if len(tensor.shape) == 2):
        return f"a matrix has outputs that are no multiple of {BLOCK}"
    return ""


def below_eight(header: GgufHeader) -> bool:
    """True if there are 4-bit matrices and all weights together have fewer than 8 bits each."""
    weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    size = sum(tensor.size for tensor in header.tensors)
    return size < weights and any(tensor.kind in FORMS for tensor in header.tensors)


def converted_kinds(header: GgufHeader) -> str:
    """Words for weights of kinds that have no products here and are read as int8; else empty."""
    other = {tensor.kind for tensor in header.tensors} - NAMES.keys() - set(FLOATS)
    size = sum(tensor.size for tensor in header.tensors)
    bits = 8 * size / sum(math.prod(tensor.shape) for tensor in header.tensors)
    return f"converted from {bits:.1f} bits a weight" if other else ""


def rounded_kinds(header: GgufHeader) -> str:
    """Words for the kinds of matrices that are rounded to 8 bits; empty if none is."""
    kinds = {tensor.kind for tensor in header.tensors if len(tensor.shape) == 2}
    names = [NAMES.get(kind, "float") for kind in sorted(kinds - EXACT.keys())]
    return f"its {' and '.join(dict.fromkeys(names))} weights in 8 bits" if names else ""


class GgufTensors:
    """The tensors of a GGUF file by their names in transformers."""

    def __init__(self, path: Path, header: GgufHeader, config: LlamaConfig) -> None:
        self.path = path
        self.header = header
        self.config = config
        self.found = {tensor.name: tensor for tensor in header.tensors}

    @property
    def files(self) -> list[Path]:
        """The file."""
        return [self.path]

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.header.tensors)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors in float32."""
        return {
            name: floats_tensor(self.matrix(name))
            if len(self.tensor(name).shape) == 2
            else self.vector(name)
            for name in names
        }

    def tensor(self, name: str) -> TensorInfo:
        """The table entry of a tensor."""
        return self.found[file_name(name)]

    def matrix(self, name: str) -> GgufMatrix:
        """A matrix."""
        heads = None
        if self.header.architecture == PERMUTED and name.endswith("q_proj.weight"):
            heads = self.config.num_attention_heads
        elif self.header.architecture == PERMUTED and name.endswith("k_proj.weight"):
            heads = self.config.num_key_value_heads
        return GgufMatrix(self.path, self.header, self.tensor(name), heads)

    def vector(self, name: str) -> Tensor:
        """A vector, float32."""
        info = self.tensor(name)
        start = self.header.data + info.offset
        found = np.fromfile(self.path, np.uint8, info.size, offset=start)
        return torch.from_numpy(floats_of(found[None], info.kind)[0].copy())

    def layer(self, index: int) -> PackedLayer:
        """One layer, projections of one input fused."""
        start = prefix(index)
        attention = start + "self_attn."
        kinds = self.config.layer_types
        return PackedLayer(
            norm=self.vector(start + "input_layernorm.weight"),
            qkv=self._linear(*(f"{attention}{part}_proj.weight" for part in "qkv")),
            qkv_bias=self._bias([f"{attention}{part}_proj.bias" for part in "qkv"]),
            query_norm=self.vector_or_none(attention + "q_norm.weight"),
            key_norm=self.vector_or_none(attention + "k_norm.weight"),
            out=self._linear(attention + "o_proj.weight"),
            mlp_norm=self.vector(start + "post_attention_layernorm.weight"),
            gate_up=self._linear(start + "mlp.gate_proj.weight", start + "mlp.up_proj.weight"),
            down=self._linear(start + "mlp.down_proj.weight"),
            window=window_of(self.config, kinds[index] if kinds else None),
        )

    def _linear(self, *names: str) -> BlockLinear:
        return BlockLinear([self.matrix(name) for name in names])

    def vector_or_none(self, name: str) -> Tensor | None:
        """A vector, float32; None if the file has none of this name."""
        return self.vector(name) if file_name(name) in self.found else None

    def _bias(self, names: list[str]) -> Tensor | None:
        if file_name(names[0]) not in self.found:
            return None
        return torch.cat([self.vector(name) for name in names])


def open_gguf(
    path: Path, header: GgufHeader, config: LlamaConfig, name: str, load: Callable[[], Any]
) -> TorchBackend:
    """A backend for a file that can be read as it is; `load` loads the transformers model."""
    tensors = GgufTensors(path, header, config)
    embedding = tensors.matrix(EMBEDDING)
    head = embedding if config.tie_word_embeddings else tensors.matrix(HEAD)

    def layers() -> Iterator[PackedLayer]:
        for index in range(config.num_hidden_layers):
            yield tensors.layer(index)

    network = Int8Network(frame_of(config, tensors), layers(), BlockLinear([head]), embedding)
    trim_heap()
    table = partial(table_of, embedding) if embedding.inputs % GROUP == 0 else None
    return backend_of(config, network, embedding, head, name, load, table)


def open_other_gguf(
    path: Path,
    header: GgufHeader,
    folder: Path,  # of its configuration
    name: str,
    load: Callable[[], Any],
) -> TorchBackend | str:
    """A backend for a file of another architecture as it is; the reason if there is none."""
    facts = ModelFacts.read(folder)
    if facts is None or not int8_gemm.available():
        return INCOMPLETE if facts is None else NO_PRODUCTS
    with quiet():
        modules = modules_of(path, header, folder, name)
        if isinstance(modules, str) or (reason := modules.uneven()):
            return modules if isinstance(modules, str) else reason
        net = modules.frame()
    assert net is not None
    embedding, head = ends_of(path, header)
    layers = map(modules.block_layer, range(len(modules.model.model.layers)))
    network = network_of(net, layers, BlockLinear([head]), embedding)
    trim_heap()
    return backend_of(facts, network, embedding, head, name, load)


def ends_of(path: Path, header: GgufHeader) -> tuple[GgufMatrix, GgufMatrix]:
    """The embedding and the output head, which may be the same."""
    found = {tensor.name: tensor for tensor in header.tensors}
    embedding = GgufMatrix(path, header, found[TOP[EMBEDDING]])
    head = GgufMatrix(path, header, found[TOP[HEAD]]) if TOP[HEAD] in found else embedding
    return embedding, head


def open_gguf_in_int8(
    path: Path,
    header: GgufHeader,
    folder: Path,  # of its configuration; the int8 weights are made there once
    name: str,
    load: Callable[[], Any],
    progress: Callable[[str], None],
) -> TorchBackend | str:
    """A backend with int8 layers for a file of any kinds of tensors; no float32 copy is kept.

    A model without int8 layers has none: the reason is returned.
    """
    facts = ModelFacts.read(folder)
    if facts is None or not int8_gemm.available():
        return INCOMPLETE if facts is None else NO_PRODUCTS
    if all(tensor.name != TOP[EMBEDDING] for tensor in header.tensors):
        return "it has no embedding"
    embedding, head = ends_of(path, header)
    place = folder / INT8_WEIGHTS
    written_with = int8_file.facts_of(facts.record)
    stored = int8_file.restore(place, written_with)
    if stored is not None:
        made = network_of(stored.net, stored.layers, stored.head, embedding)
    else:
        config = read_config(folder)
        if config is not None and not missing_reason(config, header):
            made = plain_network(path, header, config, head, embedding, progress)
        else:
            other = other_network(path, header, folder, name, head, embedding, progress)
            if isinstance(other, str):
                return other
            made = other
        trim_heap()
        if sum(math.prod(tensor.shape) for tensor in header.tensors) >= WORTH:
            int8_file.save(place, written_with, made)
    return backend_of(facts, made, embedding, head, name, load)


def network_of(
    net: LlamaModel, layers: Iterable[Any], head: Any, embedding: GgufMatrix
) -> Int8Network:
    """The int8 network of a description."""
    return (ExtendedNetwork if net.extended else Int8Network)(net, layers, head, embedding)


def plain_network(
    path: Path,
    header: GgufHeader,
    config: LlamaConfig,
    head: GgufMatrix,
    embedding: GgufMatrix,
    progress: Callable[[str], None],
) -> Int8Network:
    """The int8 network of a Llama-like model, made without transformers."""
    tensors = GgufTensors(path, header, config)
    net = frame_of(config, tensors)
    layers = announced(quantised_layers(net, config, tensors, embedding), config, progress)
    with threads(1):  # as in `fast_load`: hundreds of short steps
        return network_of(net, layers, head, embedding)


def other_network(
    path: Path,
    header: GgufHeader,
    folder: Path,
    name: str,
    head: GgufMatrix,
    embedding: GgufMatrix,
    progress: Callable[[str], None],
) -> Int8Network | str:
    """The int8 network of another model; or the reason why there is none."""
    with quiet():
        modules = modules_of(path, header, folder, name)
        if isinstance(modules, str):
            return modules
        net = modules.frame()
        assert net is not None
        return network_of(net, modules.packed_layers(embedding, progress), head, embedding)


def modules_of(path: Path, header: GgufHeader, folder: Path, name: str) -> "GgufModules | str":
    """The modules of a model and their tensors; the reason if it is not read layer by layer."""
    from transformers import AutoConfig

    from sapwood.backends.torch.gguf_modules import GgufModules

    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.model_type not in FAMILIES:
        return missing_part(config)
    modules = GgufModules(path, header, config, name)
    return modules.missing_reason() or modules


def quantised_layers(
    net: LlamaModel, config: LlamaConfig, tensors: GgufTensors, embedding: GgufMatrix
) -> Iterator[LlamaLayer]:
    """The layers as int8 networks take them, one at a time."""

    def embed(tokens: Tensor) -> Tensor:
        return torch.from_numpy(embedding.take(tokens.numpy()))

    return smoothed_layers(net, config, tensors, torch.get_num_threads(), embed)


def announced(
    layers: Iterator[LlamaLayer], config: LlamaConfig, progress: Callable[[str], None]
) -> Iterator[LlamaLayer]:
    """The same layers; says which one is packed."""
    for number, layer in enumerate(layers, 1):
        progress(f"packing layer {number} of {config.num_hidden_layers}, once")
        yield layer


def backend_of(
    config: LlamaConfig | ModelFacts,
    network: Int8Network,
    embedding: GgufMatrix,
    head: GgufMatrix,
    name: str,
    load: Callable[[], Any],
    table: Callable[[], EmbeddingTable] | None = None,
) -> TorchBackend:
    """A backend whose embedding and output head stay in the file.

    `table` makes the form of the embedding that drafters read, if it is not float32.
    """
    first = LazyMatrix(partial(floats_tensor, embedding), table)
    last = LazyMatrix(partial(floats_tensor, head))
    model = LazyModel(config, first, first if head is embedding else last, load)
    return TorchBackend(model, name, network)


def table_of(embedding: GgufMatrix) -> EmbeddingTable:
    """The embedding in 8-bit blocks: in its file if it has them there."""
    return EmbeddingTable(embedding.eight_bit_blocks())


def floats_tensor(matrix: GgufMatrix) -> Tensor:
    """A whole matrix in float32."""
    return torch.from_numpy(matrix.floats())


def frame_of(config: LlamaConfig, tensors: GgufTensors) -> LlamaModel:
    """The model description; its matrices are shapes without memory, as they stay in the file."""
    table = torch.empty((config.vocab_size, config.hidden_size), device="meta")
    return frame(config, table, tensors.vector(NORM), table)
