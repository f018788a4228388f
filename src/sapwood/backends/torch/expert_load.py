"""Loads a folder of gpt-oss into packed layers, one expert at a time.

The modules are those of transformers, without memory: they name the tensors and make the rotary
angles. Weights of experts are in MXFP4 blocks, as they were published, or floats. A folder that is
not complete is left to transformers, which says what is wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from sapwood.backends.torch import architectures
from sapwood.backends.torch.architectures import FAMILIES
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.config import ModelFacts
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.block_linear import (
    BlockLinear,
    FloatBlocks,
    Mxfp4Blocks,
    PackedLayer,
    float_head,
)
from sapwood.backends.torch.cpu_int8.experts import ExpertLinears
from sapwood.backends.torch.cpu_int8.extended_network import ExtendedNetwork
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear
from sapwood.backends.torch.fast_load import EMBEDDING, HEAD, NORM, prefix
from sapwood.backends.torch.lazy_model import LazyMatrix, LazyModel
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel
from sapwood.backends.torch.meta_model import empty_model
from sapwood.backends.torch.mxfp4 import GROUP, METHOD, dequantize
from sapwood.backends.torch.silence import quiet
from sapwood.backends.torch.weights import TensorFiles, find_weights
from sapwood.common.heap import trim_heap

KIND = "gpt_oss"
GATE_UP, DOWN = architectures.EXPERTS[1:]
BLOCKS, EXPONENTS = "_blocks", "_scales"  # endings of the names of MXFP4 tensors
BYTES = "U8"  # dtype of them


def open_experts(
    folder: Path,
    name: str,
    load: Callable[[], Any],
    bits: int = 8,
    progress: Callable[[str], None] = lambda _: None,
) -> TorchBackend | None:
    """An int8 or int4 backend for a folder of gpt-oss; None if it needs transformers, by `load`."""
    facts = ModelFacts.read(folder)
    if facts is None or facts.model_type != KIND or not int8_gemm.available():
        return None
    quantised = facts.record.get("quantization_config") or {}
    weights = find_weights(folder)
    if weights is None or quantised.get("quant_method", METHOD) != METHOD:
        return None
    with quiet():
        found = ExpertFolder.read(folder, name, weights)
        if found is None:
            return None
        layers = found.packed_layers(bits, progress)
        head = float_head(weights.strips(found.head)) if bits < 8 else weights.strips(found.head)
        network = ExtendedNetwork(found.net, layers, head)
    trim_heap()
    embedding, last = (LazyMatrix(part.float) for part in (found.net.embedding, found.net.head))
    tied = found.head == EMBEDDING
    model = LazyModel(facts, embedding, embedding if tied else last, load)
    return TorchBackend(model, name, network)


class ExpertFolder:
    """The tensors of a folder, and the description of its model without layers."""

    def __init__(self, config: Any, model: Any, net: LlamaModel, weights: TensorFiles) -> None:
        """`config` and the empty `model` are of transformers."""
        self.config = config
        self.model = model
        self.weights = weights
        self.head = EMBEDDING if config.tie_word_embeddings else HEAD
        self.net = replace(
            net,
            embedding=weights.view(EMBEDDING),
            norm=weights.copy(NORM),
            head=weights.view(self.head),
        )

    @classmethod
    def read(cls, folder: Path, name: str, weights: TensorFiles) -> "ExpertFolder | None":
        """The folder, if it is complete and the int8 network runs its model."""
        from transformers import AutoConfig

        try:
            config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model = empty_model(config, name)
        except Exception:  # transformers will say what is wrong
            return None
        net = architectures.frame(model)
        twice = config.tie_word_embeddings and HEAD in weights.entries
        if net is None or twice or not complete(model, weights):
            return None
        return cls(config, model, net, weights)

    def packed_layers(self, bits: int, progress: Callable[[str], None]) -> Iterator[PackedLayer]:
        """The layers, quantised one at a time.

        With 4 bits, experts in MXFP4 stay as they are, and attention, which the file has in floats,
        takes 8: it is a thirtieth of the weights.
        """
        whole = bits == 8 or prefix(0) + GATE_UP not in self.weights.entries
        count = len(self.model.model.layers)
        for index in range(count):
            progress(f"packing layer {index + 1} of {count}")
            layer = self._layer(index)
            yield PackedLayer.of(
                layer,
                SplitLinear(layer.qkv) if whole else four_bits(layer.qkv),
                Int8Linear(layer.out) if whole else four_bits(layer.out),
                ExpertLinears(list(self._experts(prefix(index) + GATE_UP, bits))),
                ExpertLinears(list(self._experts(prefix(index) + DOWN, bits))),
            )
            trim_heap()

    def _layer(self, index: int) -> LlamaLayer:
        """One layer; the weights of its experts are shapes without memory."""
        module = self.model.model.layers[index]
        empty = {name: part.detach() for name, part in module.named_parameters()}
        start = prefix(index)
        found = self.weights.read(start + name for name in empty if name not in (GATE_UP, DOWN))
        tensors = empty | {name.removeprefix(start): tensor for name, tensor in found.items()}
        family = FAMILIES[self.config.model_type]
        return architectures.layer_of(
            tensors, family, self.config, index, module.self_attn.head_dim
        )

    def _experts(self, name: str, bits: int) -> Iterator[Int8Linear | BlockLinear]:
        """A linear layer of each expert."""
        for expert in range(self.net.experts):
            if name in self.weights.entries:
                weight = in_order(name, self._part(name, expert).float().t())
                yield SplitLinear(weight) if bits == 8 else four_bits(weight)
            else:
                blocks, exponents = (
                    in_order(name, self._part(name + end, expert)) for end in (BLOCKS, EXPONENTS)
                )
                yield (
                    SplitLinear(dequantize(blocks, exponents))
                    if bits == 8
                    else BlockLinear([Mxfp4Blocks(blocks, exponents)])
                )

    def _part(self, name: str, expert: int) -> Tensor:
        """The tensor of one expert; only its pages of the file are read."""
        with safe_open(self.weights.entries[name].file, "pt") as opened:
            found: Tensor = opened.get_slice(name)[expert : expert + 1][0]
        return found


def in_order(name: str, rows: Tensor) -> Tensor:
    """Rows of a matrix of an expert; those of gate and up one under the other."""
    return architectures.halves(rows[None])[0] if name.endswith(GATE_UP) else rows


def four_bits(weight: Tensor) -> BlockLinear:
    """A linear layer in 4-bit blocks."""
    return BlockLinear([FloatBlocks(weight, 4)])


def complete(model: Any, weights: TensorFiles) -> bool:
    """True if the files have every tensor of the model, those of experts as floats or blocks."""
    shapes = {name: tuple(part.shape) for name, part in model.named_parameters()}  # tied ones once
    whole = {name: shape for name, shape in shapes.items() if not in_blocks(name, shape, weights)}
    return weights.fit(whole)


def in_blocks(name: str, shape: tuple[int, ...], weights: TensorFiles) -> bool:
    """True if the files have a tensor of experts, [experts, inputs, outputs], as MXFP4 blocks."""
    if not name.endswith((GATE_UP, DOWN)) or name in weights.entries:
        return False
    experts, inputs, outputs = shape
    groups = (experts, outputs, inputs // GROUP)
    wanted = {name + BLOCKS: (*groups, GROUP // 2), name + EXPONENTS: groups}
    found = {part: weights.entries.get(part) for part in wanted}
    return inputs % GROUP == 0 and all(
        entry is not None and entry.shape == wanted[part] and entry.kind == BYTES
        for part, entry in found.items()
    )
