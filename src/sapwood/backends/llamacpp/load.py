"""From a model's name to a llama.cpp backend: the built-in model or a GGUF file."""

import os
from dataclasses import replace
from pathlib import Path

from sapwood.backends.llamacpp.backend import LlamaCppBackend
from sapwood.backends.llamacpp.library import library
from sapwood.backends.llamacpp.tokenizer import GgufTokenizer
from sapwood.backends.llamacpp.weights import GgufModel
from sapwood.backends.torch.gguf import Progress
from sapwood.backends.torch.gguf_samples import fingerprint_of_gguf
from sapwood.backends.torch.resolve_model import AUTO, BUILT_IN, MOST_THREADS, built_in_file
from sapwood.common.gguf_header import named_gguf, read_header
from sapwood.errors import SapwoodError

GPU = ("cuda", "gpu")


def load(
    model: str,
    *,
    device: str | None = None,  # None or "auto": a GPU where llama.cpp was built for one
    dtype: str | None = None,  # the file decides
    threads: int | None = None,  # None: one per core
    progress: Progress,
) -> tuple[LlamaCppBackend, GgufTokenizer]:
    """A backend for this model, and its tokenizer."""
    path = find_file(model)
    check(model, dtype, threads)
    gpu = wants_gpu(device)
    header = read_header(path)  # llama.cpp does not check the sizes in a file's header
    progress(f"loading {model}")
    weights = GgufModel(path, gpu=gpu)
    weights.check(model)
    backend = LlamaCppBackend(
        weights, model, threads=threads or cores(), device="gpu" if gpu else "cpu"
    )
    backend.info = replace(backend.info, weights=fingerprint_of_gguf(path, header))
    return backend, GgufTokenizer(weights)


def find_file(model: str) -> Path:
    """The GGUF file of this name."""
    path = Path(os.path.expanduser(model))
    if model == BUILT_IN:
        return built_in_file()
    if not named_gguf(path):
        raise SapwoodError(
            f"the llama.cpp backend reads GGUF files, not {model!r}; "
            "use a .gguf file or the torch backend"
        )
    if not path.is_file():
        raise SapwoodError(f"model {model!r} is not there; check the path of the .gguf file")
    return path


def check(model: str, dtype: str | None, threads: int | None) -> None:
    """Refuse options that this backend does not have."""
    if dtype not in AUTO:
        raise SapwoodError(
            f"dtype {dtype!r} cannot be chosen here, the file of {model} decides; leave it out"
        )
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise SapwoodError(f"threads={threads} must be from 1 to {MOST_THREADS}")


def wants_gpu(device: str | None) -> bool:
    """True when all layers go to a GPU."""
    able = bool(library().llama_supports_gpu_offload())
    if device in AUTO:
        return able
    if device == "cpu" or (able and device in GPU):
        return device != "cpu"
    known = "cpu, gpu or auto" if able else "cpu: llama.cpp was built here without a GPU"
    raise SapwoodError(f"device {device!r} cannot be used by the llama.cpp backend; use {known}")


def cores() -> int:
    """Cores this process may use; two threads of one core count once, if known."""
    mine = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    places = [
        Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in mine
    ]
    return len({place.read_text() if place.is_file() else str(place) for place in places})
