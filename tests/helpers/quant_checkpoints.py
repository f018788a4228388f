"""Tiny model folders in the layouts of AWQ and GPTQ, packed number by number."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers import byte_tokenizer, tiny_models

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # four bits of a word in which each of eight outputs lies
SIZES = {"hidden_size": 64, "intermediate_size": 96}


@dataclass(frozen=True)
class Layout:
    """How a folder is packed."""

    method: str = "gptq"
    group: int = 32
    bits: int = 4
    symmetric: bool = False
    order: bool = False  # groups of inputs in an order of their own
    version: str = "gptq"


def into_words(numbers: Iterable[int], bits: int = 4) -> int:
    """Numbers in one word, as a signed integer of 32 bits."""
    word = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    return word - (1 << 32) if word >= 1 << 31 else word


def gptq_rows(numbers: Any, bits: int = 4) -> Tensor:
    """Numbers [inputs, outputs] as words [inputs / 8, outputs]."""
    each = 32 // bits
    rows = [
        [into_words(numbers[start : start + each, column], bits) for column in range(numbers.shape[1])]
        for start in range(0, len(numbers), each)
    ]  # fmt: skip
    return torch.tensor(rows, dtype=torch.int32)


def awq_rows(numbers: Any) -> Tensor:
    """Numbers [rows, outputs] as words [rows, outputs / 8]."""
    rows = []
    for row in numbers:
        words = []
        for start in range(0, len(row), 8):
            places = [0] * 8
            for output in range(8):
                places[AWQ_PLACES[output]] = row[start + output]
            words.append(into_words(places))
        rows.append(words)
    return torch.tensor(rows, dtype=torch.int32)


def pack(weight: Tensor, layout: Layout) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a projection [outputs, inputs], and the floats that they stand for."""
    outputs, inputs = weight.shape
    group = inputs if layout.group < 0 else layout.group
    most = 2**layout.bits - 1
    groups = np.arange(inputs) // group
    if layout.order:
        groups = groups[np.random.default_rng(inputs).permutation(inputs)]
    floats = weight.float().numpy().T  # [inputs, outputs]
    zeros, scales = np.zeros((2, int(groups.max()) + 1, outputs))
    numbers = np.zeros((inputs, outputs), np.int64)
    for at in range(len(zeros)):
        part = floats[groups == at]
        if layout.symmetric:
            scale, zero = np.abs(part).max(0) / (most // 2), np.full(outputs, (most + 1) // 2)
        else:
            scale = (part.max(0) - part.min(0)) / most
            zero = np.clip(np.rint(-part.min(0) / scale), 1, most)
        scales[at], zeros[at] = scale.astype(np.float16), zero
        numbers[groups == at] = np.clip(np.rint(part / scales[at]) + zero, 0, most)
    meant = (numbers - zeros[groups]) * scales[groups]
    found = {"scales": torch.from_numpy(scales).half()}
    if layout.method == "awq":
        found |= {"qweight": awq_rows(numbers), "qzeros": awq_rows(zeros.astype(int))}
    else:
        less = 0 if layout.version == "gptq_v2" else 1
        stored = zeros.astype(int) - less
        found |= {
            "qweight": gptq_rows(numbers, layout.bits),
            "qzeros": gptq_rows(stored.T, layout.bits).T.contiguous(),
            "g_idx": torch.from_numpy(groups).int(),
        }
    return found, torch.from_numpy(meant.T.copy()).float()


def write(folder: Path, layout: Layout, name: str = "qwen2", **options: Any) -> Any:
    """Write a model in this layout; the transformers model of the floats that it stands for."""
    model = tiny_models.make(
        name,
        vocab_size=byte_tokenizer.SIZE,
        eos_token_id=byte_tokenizer.EOS,
        **{"tie_word_embeddings": False, **SIZES, **options},
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    tensors: dict[str, Tensor] = {}
    for key, weight in model.state_dict().items():
        if "_proj.weight" in key:
            parts, meant = pack(weight, layout)
            tensors |= {key.replace("weight", part): found for part, found in parts.items()}
            weight.copy_(meant)
        elif not (key == "lm_head.weight" and model.config.tie_word_embeddings):
            tensors[key] = weight.half()
    folder.mkdir(exist_ok=True)
    byte_tokenizer.save(folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = settings(layout)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def settings(layout: Layout) -> dict[str, Any]:
    """The `quantization_config` of a layout."""
    found: dict[str, Any] = {
        "quant_method": layout.method,
        "bits": layout.bits,
        "group_size": layout.group,
    }
    if layout.method == "awq":
        return {**found, "version": "gemm", "zero_point": True}
    return {
        **found,
        "sym": layout.symmetric,
        "desc_act": layout.order,
        "checkpoint_format": layout.version,
    }
