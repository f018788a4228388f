"""A head from any folder we can read: our own, and those of other trainers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.heads import dialects, files
from sapwood.heads.facts import TargetFacts
from sapwood.heads.folder import read_config
from sapwood.heads.medusa import Medusa, MedusaConfig
from sapwood.heads.medusa_files import read_medusa


def open_head(
    folder: Path, kind: str, model: Any, name: str, *, device: torch.device, dtype: torch.dtype
) -> tuple[Any, Tensor | None]:
    """The head in a folder, for a transformers model of this name, and an embedding where it brings its own."""
    facts = TargetFacts.of(model.config.to_dict(), name)
    if kind == "eagle3":
        return dialects.read(folder, facts, device=device, dtype=dtype)
    if kind == "medusa" and files.BLOCK not in read_config(folder):
        fields, tensors = read_medusa(folder, facts)
        return files.build(Medusa, MedusaConfig(**fields), tensors, folder, device, dtype), None
    return files.load(folder, device=device, dtype=dtype), None
