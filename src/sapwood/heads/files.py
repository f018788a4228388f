"""Saves trained heads and loads them again: `config.json` and `model.safetensors`, weights in 16 bits.

The config holds a block "sapwood" with the kind of head, its config and what is to be told about it.
Some kinds add keys for other engines, which can then load the folder as it is.
"""

import importlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.heads import codec
from sapwood.heads.facts import TargetFacts
from sapwood.heads.folder import Tensors, check_fit, read_config, read_tensors, refuse, write

BLOCK = "sapwood"
KINDS: dict[str, str] = {  # imported when one is saved or loaded
    "eagle3": "sapwood.heads.eagle3:Eagle3",
    "eagle": "sapwood.heads.eagle:Eagle",
    "medusa": "sapwood.heads.medusa:Medusa",
    "hydra": "sapwood.heads.hydra:Hydra",
    "early-exit": "sapwood.heads.early_exit:EarlyExit",
    "parallel": "sapwood.heads.parallel:Parallel",
    "recurrent": "sapwood.heads.recurrent:Recurrent",
}
FRONTS = {"eagle3": "sapwood.heads.eagle_keys:eagle_config"}  # gives the keys for other engines
EMBEDDING = "embed_tokens.weight"
EXTRAS = {"eagle3": (EMBEDDING,)}  # tensors that may come along without being the head's


@dataclass(frozen=True, slots=True)
class Saved:
    """What a folder holds."""

    head: nn.Module
    about: dict[str, Any]
    extra: Tensors  # as stored


def save(
    head: nn.Module,
    folder: Path,
    about: Mapping[str, Any] | None = None,  # what to remember of the training; plain JSON values
    extra: Mapping[str, Tensor] | None = None,
    facts: TargetFacts | None = None,  # of the target, for keys that other engines like to find
) -> None:
    """Write a head so that `load` gives it back; an earlier one in the folder is replaced."""
    kind, config = str(getattr(head, "kind", type(head).__name__)), getattr(head, "config", None)
    if not isinstance(head, class_of(kind)):
        raise SapwoodError(f"{type(head).__name__} is not the head that {kind!r} stands for; see KINDS")
    front = look_up(FRONTS[kind])(config, facts) if kind in FRONTS else {}
    block = {"kind": kind, "config": codec.encode(config), "about": dict(about or {})}
    write(folder, {**front, BLOCK: block}, {**head.state_dict(), **(extra or {})})


def load(folder: Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """The head in a folder that `save` wrote, in evaluation mode; float32 on the CPU unless told otherwise."""
    found = read(folder, device=device, dtype=dtype)
    for name in found.extra:
        refuse(folder, f"holds a {name!r} of its own; read it with sapwood.heads.dialects")
    return found.head


def read(folder: Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Saved:
    """The same with all that was saved beside the head."""
    block = read_block(folder)
    made = class_of(block["kind"], folder)
    config = codec.decode(config_class(made), block["config"], f"the config in {folder}")
    tensors = read_tensors(folder)
    extra = {name: tensors.pop(name) for name in EXTRAS.get(block["kind"], ()) if name in tensors}
    return Saved(build(made, config, tensors, folder, device, dtype), block["about"], extra)


def read_block(folder: Path) -> dict[str, Any]:
    """The part of config.json that is ours: kind, config and about."""
    block = read_config(folder).get(BLOCK)
    if not isinstance(block, dict):
        refuse(folder, "was not saved by sapwood; heads of other tools are read by sapwood.heads.dialects")
    for key, kind in (("kind", str), ("config", dict), ("about", dict)):
        if not isinstance(block.get(key), kind):
            refuse(folder, f"has no {key!r} in the block {BLOCK!r} of its config; save it again")
    return block


def build(
    made: type[nn.Module],
    config: Any,
    tensors: Tensors,
    folder: Path,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A head with these tensors, which must be exactly its own."""
    try:
        with torch.device("meta"):  # a damaged config may ask for more memory than there is
            skeleton = made(config)
    except SapwoodError:
        raise
    except Exception as error:
        raise SapwoodError(f"the config in head folder {folder} makes no head ({error}); save it again") from error
    check_fit(skeleton, tensors, folder)
    with torch.random.fork_rng(devices=[]):  # loading draws no random numbers that anybody could miss
        head = made(config)
    head.load_state_dict(tensors)
    return head.to(device=device, dtype=dtype).eval()


# ------------------------------------------------------------------------------------------ kinds
def class_of(kind: str, folder: Path | None = None) -> type[nn.Module]:
    """The class of a kind of head."""
    if kind not in KINDS:
        where = f"head folder {folder} holds" if folder else "there is"
        verb = "a head of kind" if folder else "no head of kind"
        raise SapwoodError(f"{where} {verb} {kind!r}; the known kinds are {', '.join(sorted(KINDS))}")
    found: type[nn.Module] = look_up(KINDS[kind])
    return found


def config_class(made: type[nn.Module]) -> type:
    """The dataclass that a head is made from."""
    found: type = typing.get_type_hints(made.__init__)["config"]
    return found


def look_up(place: str) -> Any:
    """The thing at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
