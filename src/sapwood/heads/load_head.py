"""Loads a head from a folder of sapwood or of another trainer; heads are shared by a model."""

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sapwood.common.drafter_store import check_target, find
from sapwood.core.protocols import Backend
from sapwood.heads import eagle3_formats, files
from sapwood.heads.folder import read_config
from sapwood.heads.medusa import MedusaConfig, MedusaHeads
from sapwood.heads.medusa_files import read_medusa
from sapwood.heads.target_info import TargetInfo

# loaded heads of each model by folder and dtype, with the time of their files: recipes share them
_SHARED: "WeakKeyDictionary[Any, dict[tuple[Any, ...], tuple[int, Any, Tensor | None]]]" = (
    WeakKeyDictionary()
)


def head_for(
    target: Backend, folder: str, kind: str, *, convert: bool = False
) -> tuple[Any, Tensor | None]:
    """The head in this folder, by default the one trained for the target, and its own embedding.

    On the target's device and in its dtype; `convert` lets the target's network convert it. It must
    not be changed: all drafters of the model share it.
    """
    model = target.capabilities.model
    table = target.capabilities.embedding_rows() if convert else model.get_input_embeddings().weight
    info = target.info
    place = Path(folder).expanduser() if folder else find(kind, info.model, info.weights)
    check_target(place, kind, info.model, info.weights)
    network = target.capabilities.network if convert else None
    key = place.resolve(), kind, table.device, table.dtype, type(network)
    age = max((file.stat().st_mtime_ns for file in place.glob("*")), default=0)
    known = _SHARED.setdefault(model, {})
    if key not in known or known[key][0] != age:
        net, own = open_head(
            place, kind, model, target.info.model, device=table.device, dtype=table.dtype
        )
        known[key] = age, net if network is None else network.convert_head(net), own
    return known[key][1:]


def open_head(
    folder: Path, kind: str, model: Any, name: str, *, device: torch.device, dtype: torch.dtype
) -> tuple[Any, Tensor | None]:
    """The head in a folder, for a transformers model of this name, and its own embedding if any."""
    facts = TargetInfo.of(model.config.to_dict(), name)
    if kind == "eagle3":
        return eagle3_formats.read(folder, facts, device=device, dtype=dtype)
    if kind == "medusa" and files.BLOCK not in read_config(folder):
        fields, tensors = read_medusa(folder, facts)
        return files.build(
            MedusaHeads, MedusaConfig(**fields), tensors, folder, device, dtype
        ), None
    return files.load(folder, device=device, dtype=dtype), None
