"""Training state in one file, replaced atomically, from which a killed run resumes."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.optim import Optimizer

from sapwood.errors import SapwoodError
from sapwood.heads.folder import check_place


def check_homes(folders: Sequence[Path]) -> None:
    """Raise if a folder cannot hold a head, before anything slow."""
    for folder in folders:
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise SapwoodError(
                f"{nearest} is a file and holds no trained drafter; give a folder as --out"
            )
        check_place(folder)
        try_place(folder)


def try_place(folder: Path) -> None:
    """Raise if a folder cannot be made and written; a folder made to try it is removed."""
    missing = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SapwoodError(
            f"folder {folder} cannot be made ({error.strerror}); give another as --out"
        ) from error
    writable = os.access(folder, os.W_OK | os.X_OK)
    for place in missing:  # the deepest first
        place.rmdir()
    if not writable:
        raise SapwoodError(f"folder {folder} cannot be written; give another as --out")


def save(path: Path, head: nn.Module, optimizers: list[Optimizer], notes: dict[str, Any]) -> None:
    """Write head, optimizer states and notes; the old file stays until the new one is complete."""
    tensors = {f"head/{name}": tensor for name, tensor in head.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, memory in optimizer.state_dict()["state"].items():
            for key, value in memory.items():
                tensors[f"optimizer/{number}/{index}/{key}"] = torch.as_tensor(value)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # the library's own file writer leaves a temporary file behind when killed
    content = serialise(whole, {"notes": json.dumps(notes)})
    write(path, lambda place: place.write_bytes(content))


def write(path: Path, writer: Any) -> None:
    """Let `writer` fill a file beside the path, then rename it; a full disk loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    try:
        writer(beside)
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        way = "free some space and run the same command again" if full else "check the folder"
        raise SapwoodError(
            f"cannot write {path}: {reason}; what was saved before is intact, {way}"
        ) from error


def notes_in(path: Path) -> dict[str, Any]:
    """The notes of a saved state."""
    try:
        with safe_open(path, "pt") as file:
            notes = json.loads(file.metadata()["notes"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise SapwoodError(
            f"{path} is no training state ({error}); delete it to begin anew"
        ) from error
    return notes if isinstance(notes, dict) else {}


def restore(path: Path, head: nn.Module, optimizers: list[Optimizer]) -> None:
    """Load a head and its optimizers from the saved state."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise SapwoodError(
            f"{path} is no training state ({error}); delete it to begin anew"
        ) from error
    weights = {
        name.removeprefix("head/"): tensor
        for name, tensor in tensors.items()
        if name.startswith("head/")
    }
    try:
        head.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise SapwoodError(
            f"{path} is of another head: {first}; delete it to begin anew"
        ) from error
    for number, optimizer in enumerate(optimizers):
        optimizer.load_state_dict(remembered(optimizer, number, tensors))


def remembered(optimizer: Optimizer, number: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state dict of one optimizer, from the tensors of the file."""
    whole: dict[str, Any] = optimizer.state_dict()
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"optimizer/{number}/"):
            index, key = name.split("/")[2:]
            memory.setdefault(int(index), {})[key] = tensor
    return whole | {"state": memory}
