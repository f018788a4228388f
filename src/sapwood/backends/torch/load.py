"""From a model's name to a backend: built-in, Hub id, local folder or GGUF file."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sapwood.backends.torch.find import AUTO, PICKLES, check, find_folder
from sapwood.backends.torch.gguf import Progress
from sapwood.backends.torch.llama import describe
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.network import Network
from sapwood.backends.torch.quiet import quiet
from sapwood.backends.torch.support import check_tree, fused, model_class
from sapwood.errors import SapwoodError
from sapwood.paths import cache_folder


def silent(message: str) -> None:
    """Progress that nobody wants to see."""


def load(
    model: str,
    *,
    device: str | None = None,  # None or "auto": cuda where there is one, else cpu
    dtype: str | None = None,  # None or "auto": float16 on cuda; elsewhere int8 where the model can, or float32
    threads: int | None = None,  # CPU threads; None leaves torch's choice
    progress: Progress = silent,
    stock: bool = False,  # by the model's own code, for those who train with its weights
) -> tuple[TorchBackend, Path]:
    """A backend for this model, and the folder that holds its tokenizer."""
    check(model, dtype, threads)
    if stock and dtype == "int8":
        raise SapwoodError("dtype 'int8' has no weights to train with; use float32, or leave it out")
    place = find_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    kind = find_dtype(dtype, place)
    folder = find_folder(model, progress)
    progress(f"loading {model}")
    found = None if stock else directly(folder, model, place, dtype, progress)
    if found is not None:
        return found, folder
    with quiet():
        read = read_model(folder, model, place, kind)
        backend = TorchBackend(read, model) if stock else build(read, model, dtype, progress)
        check_tree(backend)
    return backend, folder


def directly(
    folder: Path, name: str, device: torch.device, dtype: str | None, progress: Progress
) -> TorchBackend | None:
    """A backend of packed weights without transformers, which takes seconds to start; None where it takes that."""
    if device.type != "cpu" or dtype not in (*AUTO, "int8") or not has_numba():
        return None
    from sapwood.backends.torch.direct import open_packed
    from sapwood.backends.torch.packed import forward, stream

    found = open_packed(folder, name, partial(read_quietly, folder, name, device, torch.float32))
    if found is not None:
        if stream.available() and not forward.known():
            progress("compiling for this processor, once, for half a minute")
        check_tree(found)  # which also wakes what was compiled, so that no prompt's time is booked for it
    return found


def build(model: Any, name: str, dtype: str | None, progress: Progress) -> TorchBackend:
    """A backend for this model, by the fastest network that runs it in the number format asked for."""
    if model.device.type == "cuda":
        return on_cuda(model, name, progress)
    if model.device.type != "cpu" or dtype not in (*AUTO, "int8"):
        return TorchBackend(model, name)
    network = packed(model, progress)
    if network is None and dtype == "int8":
        raise SapwoodError(f"model {name!r} cannot be run in int8 here; use float32, or a Llama-like model with numba")
    return TorchBackend(model, name, network)


def on_cuda(model: Any, name: str, progress: Progress) -> TorchBackend:
    """A backend of fused kernels where the model is Llama-like in half precision and they can be compiled."""
    half = model.dtype in (torch.float16, torch.bfloat16)
    recent = torch.cuda.get_device_capability(model.device) >= (8, 0)
    found = describe(model) if half and recent and importlib.util.find_spec("triton") is not None else None
    if found is None:
        return TorchBackend(model, name)
    from sapwood.backends.torch.fused.backend import FusedBackend
    from sapwood.backends.torch.fused.tune import prepare

    progress("preparing the kernels")
    backend = FusedBackend(model, name, found=found)
    prepare(backend.fused)
    return backend


def packed(model: Any, progress: Progress) -> Network | None:
    """The model in packed weights, where that can be had."""
    if not has_numba():
        return None
    from sapwood.backends.torch.packed import pack

    progress("packing the weights")
    return pack(model)


def has_numba() -> bool:
    """True where what runs between packed layers can be compiled."""
    return importlib.util.find_spec("numba") is not None


def find_device(name: str | None) -> torch.device:
    """The device of this name; refuses one that is not there."""
    if name in AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(str(name))
        torch.zeros(1, device=device).cpu()  # there and back: some devices only pretend
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SapwoodError(f"device {name!r} cannot be used here; use cpu, cuda or auto") from error
    return device


def find_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The number format that weights are read in; on a CPU they may be packed afterwards."""
    if name == "int8" and device.type != "cpu":
        raise SapwoodError(f"dtype 'int8' runs on a CPU only; on {device} use float16, bfloat16 or float32")
    if name in (*AUTO, "int8"):
        return torch.float16 if device.type == "cuda" else torch.float32
    found: torch.dtype = getattr(torch, str(name))
    return found


def read_model(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformers model in this folder, whole, on its device."""
    from transformers import AutoConfig

    from sapwood.backends.torch.attention import register

    if not (folder / "config.json").is_file():
        raise SapwoodError(f"model {name!r} has no config.json in {folder}; use a folder saved by transformers")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        reason = f"has a configuration that transformers cannot read: {brief(error)}"
        raise SapwoodError(f"model {name!r} {reason}; {anew(folder)}") from error
    found = model_class(config, name)
    if not any(folder.glob("*.safetensors")):
        if any(path.suffix in PICKLES for path in folder.iterdir()):
            raise SapwoodError(f"model {name!r} has pickled weights, which can run code; convert them to safetensors")
        raise SapwoodError(f"model {name!r} has no .safetensors weights in {folder}; convert or download them")
    attention = register() if fused(config, found) else "eager"
    try:
        model, report = found.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            device_map=None if device.type == "cpu" else {"": device},
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    except torch.OutOfMemoryError as error:
        raise SapwoodError(f"model {name!r} does not fit the memory of {device}; use a smaller one") from error
    except Exception as error:
        raise SapwoodError(f"model {name!r} has weights that cannot be read: {brief(error)}; {anew(folder)}") from error
    for fault, kind in (("missing_keys", "lacks weights"), ("mismatched_keys", "has weights of the wrong shape")):
        if report[fault]:
            raise SapwoodError(f"model {name!r} {kind}: {sorted(map(str, report[fault]))[0]}; {anew(folder)}")
    return model


def read_quietly(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The same with nothing on the terminal, ready to be run."""
    with quiet():
        return read_model(folder, name, device, dtype).eval()


def anew(folder: Path) -> str:
    """What helps against a damaged folder."""
    return f"delete {folder}, it is made again" if cache_folder() in folder.parents else "download it again"


def brief(error: Exception) -> str:
    """What an error says, in at most two of its lines."""
    return " ".join(" ".join(str(error).strip().split("\n")[:2]).split()) or type(error).__name__
