"""Folders of tiny gpt-oss models, with weights of experts as floats or in MXFP4 blocks."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers import tiny_models

NAME = "gpt-oss-eager"
SIZES = {"hidden_size": 64, "intermediate_size": 96}  # whole blocks of 32
LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def in_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, exponents and rounded values of a matrix [..., inputs], written as the format says."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    exponents = (largest / 6).log2().ceil()
    scaled = groups / 2**exponents
    picks = (scaled.abs()[..., None] - LEVELS).abs().argmin(-1)
    values = LEVELS[picks] * scaled.sign() * 2**exponents
    codes = (picks + 8 * (scaled < 0)).to(torch.uint8)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return blocks, (exponents[..., 0] + 127).to(torch.uint8), values.flatten(-2)


def float_folder(path: Path, dtype: torch.dtype = torch.bfloat16, **extra: Any) -> Path:
    """A folder of a tiny model, saved by transformers."""
    tiny_models.make(NAME, dtype, **{**SIZES, **extra}).save_pretrained(path)
    return path


def mxfp4_folder(path: Path, exact: Path) -> Path:
    """A folder with experts in MXFP4 blocks; at `exact` is its model with the same values."""
    float_folder(exact, torch.float32)
    path.mkdir()
    tensors = load_file(exact / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, exponents, values = in_mxfp4(tensors[name].transpose(1, 2))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        tensors[name] = values.transpose(1, 2).contiguous()
    save_file(tensors, exact / "model.safetensors", {"format": "pt"})
    others = {name: tensor for name, tensor in tensors.items() if f"{name}_blocks" not in packed}
    save_file(packed | others, path / "model.safetensors", {"format": "pt"})
    config = json.loads((exact / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (path / "config.json").write_text(json.dumps(config))
    return path
