"""Layers of a GGUF file of any architecture that has int8 layers, one at a time in memory.

The modules are those of transformers, without memory. In int8 a pass over the calibration text
fills each layer with the file's tensors before it runs, and packs and empties it afterwards: the
bits are those of the whole model in float32. As it is in the file, a matrix is read without them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch import architectures
from sapwood.backends.torch.architectures import FAMILIES, missing_part
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear, PackedLayer
from sapwood.backends.torch.cpu_int8.network import packed_layer
from sapwood.backends.torch.cpu_int8.smoothquant import (
    TOKENS,
    random_text,
    rms_of,
    smooth_layer,
)
from sapwood.backends.torch.gguf_blocks import PERMUTED, GgufMatrix, floats_of
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.meta_model import empty_model
from sapwood.common.gguf_header import GgufHeader, TensorInfo
from sapwood.common.heap import trim_heap

NORM = "model.norm.weight"


class GgufModules:
    """The modules of a model without memory, and where the file has their tensors."""

    def __init__(self, path: Path, header: GgufHeader, config: Any, name: str) -> None:
        """`config` is of transformers."""
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            TensorProcessor,
            get_gguf_hf_weights_map,
        )

        self.path = path
        self.header = header
        self.config = config
        self.model = empty_model(config, name)
        kind: Any = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)
        self._processor: Any = kind(config=config.to_dict())
        name_map: Any = get_gguf_hf_weights_map
        self._names: dict[str, str] = name_map(self.model, self._processor)

    @cached_property
    def sources(self) -> dict[str, list[TensorInfo]]:
        """The tensors of the file that make each parameter, by its name."""
        found: dict[str, list[TensorInfo]] = defaultdict(list)
        for tensor in self.header.tensors:
            # tensors of experts have no suffix in transformers' names
            for name in (tensor.name, tensor.name.removesuffix(".weight")):
                if name in self._names:
                    found[self._names[name]].append(tensor)
                    break
        return dict(found)

    def missing_reason(self) -> str:
        """The reason why the model cannot be read layer by layer; empty if it can."""
        for name, parameter in self.model.named_parameters():  # tied ones come once
            parts = self.sources.get(name, [])
            if sum(math.prod(part.shape) for part in parts) != parameter.numel():
                return f"its tensor {name} is not that of its architecture"
            if len(parts) == 1 and parts[0].shape[::-1] != tuple(parameter.shape):
                return f"its tensor {name} has another shape"
        if self.frame() is None:
            return missing_part(self.config)
        if architectures.logit_factor(self.config) != 1.0:
            return "its output head, which stays in the file, has a factor"
        return ""

    def read(self, names: list[str]) -> dict[str, Tensor]:
        """These parameters, float32."""
        gathered: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for name in names:
            for tensor in self.sources[name]:
                made = self._processor.process(
                    weights=self._floats(tensor),
                    name=tensor.name,
                    tensor_key_mapping=self._names,
                    parsed_parameters=gathered,
                )
                if made.name is not None:  # otherwise it has been stored
                    gathered["tensors"][name] = torch.from_numpy(made.weights.copy())
        return gathered["tensors"]

    def _floats(self, tensor: TensorInfo) -> Any:
        start = self.header.data + tensor.offset
        found = np.fromfile(self.path, np.uint8, tensor.size, offset=start)
        rows = found.reshape(math.prod(tensor.shape[1:]), -1)
        return floats_of(rows, tensor.kind).reshape(tensor.shape[::-1])

    def matrix(self, name: str) -> GgufMatrix | None:
        """A matrix that stays in the file; None if there is none of this name."""
        parts = self.sources.get(name)
        return None if parts is None else GgufMatrix(self.path, self.header, parts[0])

    def uneven(self) -> str:
        """The reason why its matrices cannot stay as they are in the file; empty if they can."""
        family = FAMILIES[self.config.model_type]
        if family.activation or architectures.has_experts(self.config):
            return "its experts have no products as they are in the file"
        width = self.model.model.layers[0].self_attn.head_dim
        if architectures.multiplied(self.config):
            return "its matrices have a factor"
        if architectures.rotated_width(self.config, width) < width:
            return "its heads are rotated in part"
        if self.header.architecture == PERMUTED:
            return "its rotated pairs lie side by side"
        return ""

    def block_layer(self, index: int) -> PackedLayer:
        """One layer whose matrices are as they are in the file."""
        start = f"model.layers.{index}."
        module = self.model.model.layers[index]
        shapes = {name: each.detach() for name, each in module.named_parameters()}
        vectors = self.read([start + name for name, each in shapes.items() if each.dim() == 1])
        found = shapes | {name.removeprefix(start): each for name, each in vectors.items()}
        family = FAMILIES[self.config.model_type]
        layer = architectures.layer_of(found, family, self.config, index, module.self_attn.head_dim)
        return PackedLayer.of(
            layer,
            self._linear(start, architectures.QKV, "self_attn.qkv_proj"),
            self._linear(start, (), "self_attn.o_proj"),
            self._linear(start, architectures.GATE_UP, "mlp.gate_up_proj"),
            self._linear(start, (), "mlp.down_proj"),
        )

    def _linear(self, start: str, parts: Sequence[str], whole: str) -> BlockLinear:
        """Projections of one input, which the file has in parts or as a whole."""
        names = [f"{start}{name}.weight" for name in (whole, *parts)]
        return BlockLinear([each for each in map(self.matrix, names) if each is not None])

    def frame(self) -> LlamaModel | None:
        """The model description; its matrices are shapes without memory."""
        self.model.load_state_dict(self.read([NORM]), strict=False, assign=True)
        return architectures.frame(self.model)

    @torch.inference_mode()
    def packed_layers(
        self, embedding: GgufMatrix, progress: Callable[[str], None]
    ) -> list[PackedLayer]:
        """All layers, quantised with the statistics of the calibration text."""
        body = self.model.model
        rows = torch.from_numpy(embedding.take(random_text(self.config.vocab_size).numpy()))
        # the text has as many different tokens as it is long: their rows are the whole table
        body.embed_tokens.padding_idx = None
        body.embed_tokens.weight = torch.nn.Parameter(rows, requires_grad=False)
        packed: list[PackedLayer] = []
        measured: list[Tensor] = []

        def fill(index: int, module: Any, _: Any) -> None:
            progress(f"packing layer {index + 1} of {len(body.layers)}, once")
            start = f"model.layers.{index}."
            found = self.read([start + name for name, _ in module.named_parameters()])
            found = {name.removeprefix(start): tensor for name, tensor in found.items()}
            module.load_state_dict(found, assign=True)

        def note(_: Any, inputs: tuple[Tensor, ...]) -> None:
            measured.append(rms_of(inputs[0]))

        def pack(index: int, module: Any, *_: Any) -> None:
            found = {name: tensor.detach() for name, tensor in module.named_parameters()}
            family = FAMILIES[self.config.model_type]
            width = module.self_attn.head_dim
            layer = architectures.layer_of(found, family, self.config, index, width)
            packed.append(packed_layer(smooth_layer(layer, measured[-1])))
            module.to("meta")
            del found, layer
            trim_heap()

        hooks = []
        for index, layer in enumerate(body.layers):
            hooks.append(layer.register_forward_pre_hook(partial(fill, index)))
            hooks.append(layer.mlp.register_forward_pre_hook(note))
            hooks.append(layer.register_forward_hook(partial(pack, index)))
        try:
            body(input_ids=torch.arange(TOKENS)[None], use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return packed
