"""Models on this machine: the built-in one, the Hub cache, and GGUF files that were converted."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from sapwood.common import drafter_store
from sapwood.common.cache_dir import cache_folder

CONVERTED = "*.safetensors"
WEIGHTS = (CONVERTED, "*.gguf", "*.int8")
HUB_PREFIX = "models--"  # of a model's folder in the Hub cache


@dataclass(frozen=True)
class LocalModel:
    """A model that loads without a download."""

    name: str  # as `--model` takes it
    place: str  # built in, Hub cache or converted
    size: int  # bytes of its weights
    heads: tuple[str, ...]  # kinds of trained parts for it
    path: Path


def local_models(built_in: tuple[str, str, str]) -> list[LocalModel]:
    """Every model that is here; `built_in` is its name, its package and its file in that."""
    return [*find_built_in(*built_in), *hub_models(), *converted_models()]


def find_built_in(name: str, package: str, file: str) -> Iterator[LocalModel]:
    """The built-in model, if its package is installed."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(folder) / file).is_file():
            yield LocalModel(name, "built in", path.stat().st_size, heads_of(name), path)


def hub_cache() -> Path:
    """The folder of the Hub cache, as huggingface_hub chooses it."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def hub_models() -> Iterator[LocalModel]:
    """Models of the Hub cache, in their newest version, that hold weights we read."""
    for folder in sorted(hub_cache().glob(f"{HUB_PREFIX}*")):
        name = folder.name.removeprefix(HUB_PREFIX).replace("--", "/")
        versions = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
        if versions and (size := weight_bytes(versions[-1])):
            yield LocalModel(name, "Hub cache", size, heads_of(name), versions[-1])


def converted_models() -> Iterator[LocalModel]:
    """Folders that GGUF files were converted to, as transformers reads them."""
    for folder in sorted((cache_folder() / "models").glob("*/config.json")):
        path = folder.parent
        if path.name.startswith(".") or not any(path.glob(CONVERTED)):
            continue
        if size := weight_bytes(path):
            yield LocalModel(str(path), "converted", size, heads_of(str(path)), path)


def weight_bytes(folder: Path) -> int:
    """Bytes of the weights in a folder; files that are missing behind a link count nothing."""
    files = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    return sum(path.stat().st_size for path in files if path.is_file())


def heads_of(model: str) -> tuple[str, ...]:
    """Kinds of trained parts for a model's name: own ones and shipped ones."""
    stores = (
        cache_folder() / "drafters" / drafter_store.safe(drafter_store.named(model)),
        drafter_store.SHIPPED / drafter_store.safe(model),
    )
    found = {
        unquote(path.parent.name)
        for store in stores
        for path in store.glob(f"*/{drafter_store.WEIGHTS}")
    }
    return tuple(sorted(found))
