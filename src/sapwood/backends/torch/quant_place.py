"""Chooses how a model gets onto a GPU with weights in 8 or 4 bits."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sapwood.backends.torch import gguf_load
from sapwood.backends.torch.config import read_config
from sapwood.backends.torch.gguf import described
from sapwood.backends.torch.gguf_samples import fingerprint_of_gguf
from sapwood.backends.torch.quant_checkpoint import CheckpointFormat
from sapwood.backends.torch.resolve_model import AUTO, QUANTISED
from sapwood.common.gguf_header import read_header
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.backend import CudaBackend

ACTIVATIONS = torch.float16
KERNELS = (8, 0)  # compute capability
FLOAT8 = (8, 9)
CPU = torch.device("cpu")

Progress = Callable[[str], None]
Read = Callable[[Path, str, torch.device, torch.dtype], Any]  # the transformers model


def missing(dtype: str, device: torch.device) -> str:
    """The reason why weights of this format cannot run on a GPU; empty if they can."""
    found = torch.cuda.get_device_capability(device)
    wanted = FLOAT8 if dtype == "fp8" else KERNELS
    other = "int8" if dtype == "fp8" and found >= KERNELS else "float16"
    if importlib.util.find_spec("triton") is None:
        return f"dtype {dtype!r} on a GPU needs Triton, which is not installed; use float16"
    if found < wanted:
        need, own = (".".join(map(str, each)) for each in (wanted, found))
        return (
            f"dtype {dtype!r} needs compute capability {need}, and this GPU has {own}; use {other}"
        )
    return ""


def folder_on_cuda(
    folder: Path,
    name: str,
    device: torch.device,
    dtype: str | None,
    progress: Progress,
    read: Read,
) -> "CudaBackend | None":
    """A backend with quantised weights for a folder; None if floats were asked for."""
    layout = CheckpointFormat.read(folder)
    four = layout is not None and layout.bits == 4 and dtype in (*AUTO, "int4")
    wanted = (
        ("int4" if four else "int8" if layout is not None else None) if dtype in AUTO else dtype
    )
    if wanted not in QUANTISED:
        return None
    reason = missing(wanted, device)
    if reason:
        if dtype in AUTO:  # a checkpoint, which runs as the floats that it stands for
            return None
        raise SapwoodError(reason)

    def load() -> Any:
        return read(folder, name, device, ACTIVATIONS)

    from sapwood.backends.torch.cuda.quant_load import load_checkpoint, load_floats

    if four and layout is not None:
        made = load_checkpoint(folder, name, layout, device, ACTIVATIONS, load, progress)
    else:
        model = read(folder, name, CPU, ACTIVATIONS)
        made = load_floats(model, name, wanted, device, load, progress)
    return prepared(made, progress)


def gguf_on_cuda(
    path: Path, name: str, device: torch.device, load: Callable[[], Any], progress: Progress
) -> "tuple[CudaBackend, Path] | None":
    """A backend for a GGUF file in its own bits, and the folder of its tokenizer.

    None if it has to be converted, which is announced; its weights are then quantised again.
    """
    reason = missing("int4", device)
    if reason:
        raise SapwoodError(reason)
    header = read_header(path)
    folder = described(path, progress)
    config = read_config(folder)
    why = gguf_load.other_kinds(header) or gguf_load.other_tensors(config, header)
    if why or config is None:
        progress(f"{path.name} is converted to float32 and quantised to 4 bits, as {why}")
        return None
    from sapwood.backends.torch.cuda.quant_gguf import load_gguf, mixed_kinds

    progress(f"loading {name}")
    made = load_gguf(
        path, header, config, name, device, ACTIVATIONS, lambda: load().to(device, ACTIVATIONS)
    )
    notes = filter(None, (gguf_load.rounded_kinds(header), mixed_kinds(header)))
    made.info = replace(made.info, weights=fingerprint_of_gguf(path, header), note=", ".join(notes))
    return prepared(made, progress), folder


def prepared(backend: "CudaBackend", progress: Progress) -> "CudaBackend":
    """The same backend with tiles chosen for its products."""
    from sapwood.backends.torch.hf.support import check_tree

    if backend.device.type == "cuda":
        from sapwood.backends.torch.cuda.kernels.autotune import prepare

        progress("preparing the kernels")
        prepare(backend.fused)
    check_tree(backend)
    return backend
