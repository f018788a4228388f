"""Reads and writes head folders: `config.json` and safetensors, written atomically.

Nothing is ever unpickled, since a pickle may run any code when it is opened.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from sapwood.common.drafter_store import CONFIG, WEIGHTS
from sapwood.errors import SapwoodError

Tensors = dict[str, Tensor]

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)  # that a head's weights may be stored in
# keys that only the config of a head has
HEAD_KEYS = ("sapwood", "speculators_model_type", "draft_vocab_size")
AGAIN = "download or save it again"


def refuse(folder: Path, reason: str) -> NoReturn:
    """Raise an error about this folder."""
    raise SapwoodError(f"head folder {folder} {reason}")


# ---------------------------------------------------------------------------------------- reading
def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json, which must be an object."""
    path = folder / CONFIG
    if not path.is_file():
        refuse(folder, f"has no {CONFIG}; name the folder of a trained head")
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise SapwoodError(
            f"head folder {folder} has a {CONFIG} that is not JSON ({error}); {AGAIN}"
        ) from error
    if not isinstance(found, dict):
        refuse(folder, f"has a {CONFIG} that is not an object; {AGAIN}")
    return found


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which are not JSON."""
    raise ValueError(f"{name} is not a number")


def read_tensors(folder: Path, name: str = WEIGHTS) -> Tensors:
    """Every tensor of the folder, as it was stored."""
    found: Tensors = {}
    for path in weight_files(folder, name):
        try:
            with safe_open(path, "pt") as file:
                found.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            reason = f"has a damaged or truncated {path.name} ({error}); {AGAIN}"
            raise SapwoodError(f"head folder {folder} {reason}") from error
    return found


def weight_files(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The file of this name, or its shards; a pickle is refused."""
    whole = folder / name
    files = (
        [whole] if whole.is_file() else sorted(folder.glob(f"{whole.stem}-*-of-*{whole.suffix}"))
    )
    if files:
        return files
    for pattern in PICKLES:
        for path in sorted(folder.glob(pattern)):
            reason = f"holds only {path.name}, a pickle, which can run code when it is opened"
            refuse(folder, f"{reason}; convert it to safetensors with the tool it comes from")
    refuse(folder, f"has no {name}; {AGAIN}")


def check_fit(skeleton: nn.Module, tensors: Tensors, folder: Path) -> None:
    """Refuse tensors that are not exactly those of this module."""
    wanted: Mapping[str, Tensor] = skeleton.state_dict()
    for name in sorted(wanted.keys() - tensors.keys()):
        refuse(folder, f"lacks the tensor {name!r}; {AGAIN}")
    for name in sorted(tensors.keys() - wanted.keys()):
        refuse(folder, f"holds a tensor {name!r} that such a head does not have; {AGAIN}")
    for name, want in wanted.items():
        got = tensors[name]
        if got.shape != want.shape:
            shapes = f"of shape {list(got.shape)} where its config asks for {list(want.shape)}"
            refuse(folder, f"holds a tensor {name!r} {shapes}; {AGAIN}")
        allowed = FLOATS if want.is_floating_point() else (want.dtype,)
        if got.dtype not in allowed:
            wanted_types = " or ".join(map(dtype_name, allowed))
            refuse(
                folder,
                f"holds a tensor {name!r} of {dtype_name(got.dtype)} "
                f"where {wanted_types} belongs; {AGAIN}",
            )


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------------------------------- writing
def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files under temporary names, then rename; same content gives same bytes."""
    check_place(folder)
    try:
        text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise SapwoodError(
            f"the config of head folder {folder} cannot be JSON ({error}); give it plain values"
        ) from error
    weights = serialise(
        {name: to_float16(name, tensors[name]) for name in sorted(tensors)}, {"format": "pt"}
    )
    drafts = {folder / f".{name}.{os.getpid()}.new": folder / name for name in (WEIGHTS, CONFIG)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for draft, content in zip(drafts, (weights, text.encode()), strict=True):
            draft.write_bytes(content)
        for draft, place in drafts.items():
            os.replace(draft, place)
    except OSError as error:
        reason = (
            f"cannot be written ({error}); "
            "make room or use another place, what was there before is kept"
        )
        raise SapwoodError(f"head folder {folder} {reason}") from error
    finally:
        for draft in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def check_place(folder: Path) -> None:
    """Refuse to overwrite a model that is not a head."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # no config, or none that can be loaded
        return
    if not (isinstance(found, dict) and any(key in found for key in HEAD_KEYS)):
        refuse(folder, f"already holds a {CONFIG} of something else; use another folder")


def to_float16(name: str, tensor: Tensor) -> Tensor:
    """A copy for storage: floats in 16 bits, others as they are."""
    plain = tensor.detach().cpu()
    if not plain.is_floating_point():
        return plain.clone(memory_format=torch.contiguous_format)
    small = plain.to(torch.float16, copy=True, memory_format=torch.contiguous_format)
    if not bool(small.isfinite().all()):
        raise SapwoodError(
            f"tensor {name!r} holds values that are not finite in float16; "
            "the head was trained badly"
        )
    return small
