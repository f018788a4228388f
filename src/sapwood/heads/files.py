"""Saves and loads trained heads: `config.json` and `model.safetensors`, weights in 16 bits.

The config holds a block "sapwood" with the kind of head, its config and facts about its training.
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
from sapwood.heads import config_io
from sapwood.heads.folder import Tensors, check_fit, read_config, read_tensors, refuse, write
from sapwood.heads.target_info import TargetInfo

BLOCK = "sapwood"
KINDS: dict[str, str] = {  # imported when one is saved or loaded
    "eagle3": "sapwood.heads.eagle3:Eagle3Head",
    "eagle": "sapwood.heads.eagle:EagleHead",
    "medusa": "sapwood.heads.medusa:MedusaHeads",
    "mask-rows": "sapwood.heads.mask_rows:MaskRowsHead",
    "gated-masks": "sapwood.heads.gated_masks:GatedMasksHead",
    "streams": "sapwood.heads.streams:StreamsHead",
    "ppd": "sapwood.heads.ppd:PpdHead",
    "medusa2": "sapwood.heads.medusa2:Medusa2Heads",
    "hydra": "sapwood.heads.hydra:HydraHeads",
    "clover": "sapwood.heads.clover:CloverHeads",
    "amphista": "sapwood.heads.amphista:AmphistaHeads",
    "hidden-transfer": "sapwood.heads.hidden_transfer:HiddenTransferHead",
    "gumiho": "sapwood.heads.gumiho:GumihoHead",
    "ctc": "sapwood.heads.ctc:CtcHead",
    "early-exit": "sapwood.heads.early_exit:EarlyExitHead",
    "parallel": "sapwood.heads.parallel:ParallelHead",
    "recurrent": "sapwood.heads.recurrent:RecurrentHead",
    "falcon": "sapwood.heads.falcon:FalconHead",
    "cerberus": "sapwood.heads.cerberus:CerberusHeads",
    "owl": "sapwood.heads.owl:OwlHead",
    "moa": "sapwood.heads.moa:MoaHead",
    "glide": "sapwood.heads.glide:GlideHead",
}
FOREIGN_KEYS = {"eagle3": "sapwood.heads.eagle_keys:eagle_config"}  # keys for other engines
EMBEDDING = "embed_tokens.weight"
EXTRAS = {"eagle3": (EMBEDDING,)}  # optional tensors that are not the head's own


@typing.runtime_checkable
class SavableHead(typing.Protocol):
    """A head that names its kind and its sizes."""

    kind: str
    config: Any


@dataclass(frozen=True, slots=True)
class SavedHead:
    """A loaded head with the facts and tensors saved beside it."""

    head: nn.Module
    about: dict[str, Any]
    extra: Tensors  # as stored


def save(
    head: nn.Module,
    folder: Path,
    about: Mapping[str, Any] | None = None,  # facts about the training; plain JSON values
    extra: Mapping[str, Tensor] | None = None,
    facts: TargetInfo | None = None,  # for the keys of other engines
) -> None:
    """Write a head so that `load` gives it back; an earlier one in the folder is replaced."""
    kind = head.kind if isinstance(head, SavableHead) else type(head).__name__
    if not isinstance(head, class_of(kind)):
        raise SapwoodError(
            f"{type(head).__name__} is not the head that {kind!r} stands for; see KINDS"
        )
    assert isinstance(head, SavableHead)
    config = head.config
    keys = look_up(FOREIGN_KEYS[kind])(config, facts) if kind in FOREIGN_KEYS else {}
    block = {"kind": kind, "config": config_io.encode(config), "about": dict(about or {})}
    write(folder, {**keys, BLOCK: block}, {**head.state_dict(), **(extra or {})})


def load(
    folder: Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """The head in a folder that `save` wrote, in evaluation mode; by default float32 on the CPU."""
    found = read(folder, device=device, dtype=dtype)
    for name in found.extra:
        refuse(folder, f"holds a {name!r} of its own; read it with sapwood.heads.eagle3_formats")
    return found.head


def read(
    folder: Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> SavedHead:
    """The head in a folder that `save` wrote, with all that was saved beside it."""
    block = read_block(folder)
    made = class_of(block["kind"], folder)
    config = config_io.decode(config_class(made), block["config"], f"the config in {folder}")
    tensors = read_tensors(folder)
    extra = {name: tensors.pop(name) for name in EXTRAS.get(block["kind"], ()) if name in tensors}
    return SavedHead(build(made, config, tensors, folder, device, dtype), block["about"], extra)


def read_block(folder: Path) -> dict[str, Any]:
    """The block of sapwood in config.json: kind, config and about."""
    block = read_config(folder).get(BLOCK)
    if not isinstance(block, dict):
        refuse(
            folder,
            "was not saved by sapwood; "
            "heads of other tools are read by sapwood.heads.eagle3_formats",
        )
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
        raise SapwoodError(
            f"the config in head folder {folder} makes no head ({error}); save it again"
        ) from error
    check_fit(skeleton, tensors, folder)
    with torch.random.fork_rng(devices=[]):  # loading leaves the random state as it is
        head = made(config)
    head.load_state_dict(tensors)
    return head.to(device=device, dtype=dtype).eval()


# ------------------------------------------------------------------------------------------ kinds
def class_of(kind: str, folder: Path | None = None) -> type[nn.Module]:
    """The class of a kind of head."""
    if kind not in KINDS:
        where = f"head folder {folder} holds" if folder else "there is"
        verb = "a head of kind" if folder else "no head of kind"
        raise SapwoodError(
            f"{where} {verb} {kind!r}; the known kinds are {', '.join(sorted(KINDS))}"
        )
    found: type[nn.Module] = look_up(KINDS[kind])
    return found


def config_class(made: type[nn.Module]) -> type:
    """The dataclass that a head is made from."""
    found: type = typing.get_type_hints(made.__init__)["config"]
    return found


def look_up(path: str) -> Any:
    """The object at "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
