"""A head from any folder we can read: our own, and those of other trainers."""

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sapwood.heads import dialects, files
from sapwood.heads.facts import TargetFacts
from sapwood.heads.folder import read_config
from sapwood.heads.medusa import Medusa, MedusaConfig
from sapwood.heads.medusa_files import read_medusa
from sapwood.trained import find

# heads of each model in memory, by folder and number format, with the age of their files: recipes side by side share
_SHARED: "WeakKeyDictionary[Any, dict[tuple[Any, ...], tuple[int, Any, Tensor | None]]]" = WeakKeyDictionary()


def head_for(target: Any, folder: str, kind: str, *, adopt: bool = False) -> tuple[Any, Tensor | None]:
    """The head in this folder, or of this kind for the target where it is empty, and an embedding of its own if it has.

    On the target's device and in its number format; `adopt` has the target's network turn it into its own. Nobody may
    change a head that was opened so: all drafters of the model use the same.
    """
    table = target.model.get_input_embeddings().weight
    place = Path(folder).expanduser() if folder else find(kind, target.info.model)
    network = getattr(target, "network", None) if adopt else None
    key = place.resolve(), kind, table.device, table.dtype, type(network)
    age = max((file.stat().st_mtime_ns for file in place.glob("*")), default=0)
    known = _SHARED.setdefault(target.model, {})
    if key not in known or known[key][0] != age:
        net, own = open_head(place, kind, target.model, target.info.model, device=table.device, dtype=table.dtype)
        known[key] = age, net if network is None else network.adopt(net), own
    return known[key][1:]


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
