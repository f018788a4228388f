"""Checkpoints in the 4-bit and 8-bit layouts of AWQ and GPTQ, read without their libraries.

Both store a projection as `qweight`, `qzeros` and `scales`, eight 4-bit numbers in a word of 32
bits: GPTQ eight inputs of an output, AWQ eight outputs of an input in an order of its own. A weight
is (number - zero point) * scale of its group of inputs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.hf.support import attention_of, model_class
from sapwood.backends.torch.meta_model import fill_buffers
from sapwood.backends.torch.quant_weight import (
    BLOCKS,
    ZERO4,
    QuantWeight,
    joined,
    pack_blocks,
)
from sapwood.backends.torch.weights import TensorFiles, find_weights
from sapwood.errors import SapwoodError

WORD = 32  # bits
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each four bits of a word
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """The `quantization_config` of a checkpoint in AWQ's or GPTQ's layout."""

    method: str  # awq or gptq
    bits: int
    group: int  # inputs that share a scale; -1: all
    offset: int  # added to stored zero points
    reordered: bool  # GPTQ's desc_act: the groups of inputs are named by g_idx

    @classmethod
    def read(cls, folder: Path) -> "CheckpointFormat | None":
        """That of a folder; None if it is in neither layout, an error if it cannot be read."""
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        found: Any = config.get("quantization_config") if isinstance(config, dict) else None
        if not isinstance(found, dict) or found.get("quant_method") not in ("awq", "gptq"):
            return None
        method = found["quant_method"]
        bits: Any = found.get("bits", found.get("w_bit", 4))
        group: Any = found.get("group_size", found.get("q_group_size", 128))
        version = str(found.get("version", "gemm")).lower()
        if bits not in ((4,) if method == "awq" else (4, 8)):
            raise SapwoodError(
                f"{folder} has {method.upper()} weights of {bits} bits, which have no products "
                "here; use a checkpoint of 4 bits"
            )
        if method == "awq" and version != "gemm":
            raise SapwoodError(
                f"{folder} has AWQ weights in the layout {version!r}; use one in the layout 'gemm'"
            )
        later = found.get("checkpoint_format") == "gptq_v2"
        return cls(
            method=method,
            bits=int(bits),
            group=int(group),
            offset=1 if method == "gptq" and not later else 0,
            reordered=bool(found.get("desc_act", False)),
        )


@dataclass(frozen=True, slots=True)
class UnpackedWeight:
    """A projection of a checkpoint, a number in a byte."""

    numbers: Tensor  # uint8 [outputs, inputs]
    scales: Tensor  # [groups, outputs]
    zeros: Tensor  # int32, the same
    groups: Tensor  # [inputs] the group of each

    def floats(self) -> Tensor:
        """The weights, float32 [outputs, inputs]."""
        zeros, scales = self.zeros.float()[self.groups], self.scales.float()[self.groups]
        return (self.numbers.float() - zeros.T) * scales.T

    def packed(self, group: int) -> QuantWeight:
        """The weights in blocks of the kernels."""
        outputs, inputs = self.numbers.shape
        data = pack_blocks(ZERO4, self.numbers, group)
        scales = joined(self.scales, self.zeros)
        return QuantWeight(ZERO4, outputs, inputs, group, data, scales)


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """The numbers of words int32 [..., words], the lowest bits first, uint8 [..., numbers]."""
    places = torch.arange(0, WORD, bits, device=words.device, dtype=torch.int32)
    found = (words[..., None] >> places) & ((1 << bits) - 1)
    return found.to(torch.uint8).flatten(-2)


def unpack_awq(words: Tensor) -> Tensor:
    """The numbers of AWQ's words [..., words], in the order of the outputs, uint8."""
    found = unpack_words(words, 4).view(*words.shape, len(AWQ_ORDER))
    ordered = torch.empty_like(found)
    ordered[..., list(AWQ_ORDER)] = found
    return ordered.flatten(-2)


class QuantCheckpoint:
    """The tensors of a folder in AWQ's or GPTQ's layout."""

    def __init__(self, folder: Path, name: str, layout: CheckpointFormat) -> None:
        files = find_weights(folder)
        if files is None:
            raise SapwoodError(f"model {name!r} has no .safetensors weights that can be read")
        self.files: TensorFiles = files
        self.folder = folder
        self.name = name
        self.layout = layout

    def has(self, linear: str) -> bool:
        """True if the projection of this name is quantised."""
        return f"{linear}.qweight" in self.files.entries

    def unpacked(self, linear: str) -> UnpackedWeight:
        """A projection, a number in a byte."""
        words, zeros = (self._tensor(f"{linear}.{part}") for part in ("qweight", "qzeros"))
        scales = self._tensor(f"{linear}.scales")
        if self.layout.method == "awq":
            numbers, points = unpack_awq(words).T, unpack_awq(zeros)
        else:
            numbers = unpack_words(words.T, self.layout.bits)
            points = unpack_words(zeros, self.layout.bits)
        outputs, inputs = numbers.shape
        group = self.group(inputs)
        if scales.shape != (-(-inputs // group), outputs) or points.shape != scales.shape:
            raise SapwoodError(
                f"model {self.name!r} has weights of the wrong shape: {linear}; download it again"
            )
        groups = torch.arange(inputs) // group
        if f"{linear}.g_idx" in self.files.entries:
            groups = self._tensor(f"{linear}.g_idx").long()
        return UnpackedWeight(numbers, scales, points.int() + self.layout.offset, groups)

    def packed(self, linears: Sequence[str]) -> list[QuantWeight]:
        """Some projections of the same inputs in blocks of the kernels."""
        parts = [self.unpacked(linear) for linear in linears]
        inputs = parts[0].numbers.shape[1]
        group = self.group(inputs)
        ordered = torch.arange(inputs) // group
        if any(not torch.equal(part.groups, ordered) for part in parts):
            raise SapwoodError(
                f"model {self.name!r} has 4-bit weights in the order of its activations "
                "(desc_act), which the kernels cannot read; use --dtype int8"
            )
        if not any(group % block == 0 for block in BLOCKS):
            raise SapwoodError(
                f"model {self.name!r} has groups of {group} weights, which the kernels cannot read;"
                " use --dtype int8"
            )
        return [part.packed(group) for part in parts]

    def group(self, inputs: int) -> int:
        """Inputs that share a scale."""
        return inputs if self.layout.group < 0 else self.layout.group

    def weight(self, parameter: str) -> Tensor:
        """A parameter of the model: as it is stored, or dequantised in float32."""
        if parameter in self.files.entries:
            return self._tensor(parameter)
        linear = parameter.removesuffix(".weight")
        if not self.has(linear):
            raise SapwoodError(f"model {self.name!r} lacks weights: {parameter}; download it again")
        return self.unpacked(linear).floats()

    def _tensor(self, name: str) -> Tensor:
        if name not in self.files.entries:
            raise SapwoodError(f"model {self.name!r} lacks weights: {name}; download it again")
        return self.files.view(name)


# ---------------------------------------------------------------------------------------- models
def model_without_weights(folder: Path, name: str, dtype: torch.dtype) -> Any:
    """The transformers model of a folder whose parameters have no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    attention = attention_of(config, model_class(config, name))
    config.quantization_config = None
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config, attn_implementation=attention, dtype=dtype)
    fill_buffers(model)
    del config.quantization_config
    return model.eval()


def dequantised_model(
    folder: Path,
    name: str,
    layout: CheckpointFormat,
    device: torch.device,
    dtype: torch.dtype,
    *,
    whole: bool = True,
) -> Any:
    """The transformers model with the weights that a checkpoint stands for.

    Unless it is `whole`, quantised projections stay without memory, and the others on `device`.
    """
    checkpoint = QuantCheckpoint(folder, name, layout)
    model = model_without_weights(folder, name, dtype)
    known = {parameter for parameter, _ in model.named_parameters(remove_duplicate=False)}
    for extra in checkpoint.files.entries.keys() - known:
        if extra.endswith(".bias") and checkpoint.weight(extra).any():
            raise SapwoodError(f"model {name!r} has a bias that its layers lack: {extra}")
    state = {}
    for parameter, _ in model.named_parameters():  # tied ones come once
        if whole or not checkpoint.has(parameter.removesuffix(".weight")):
            state[parameter] = checkpoint.weight(parameter).to(device, dtype, copy=True)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return (model.to(device) if whole else model).requires_grad_(False)
