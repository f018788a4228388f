"""Where trained parts lie: what the user trained for a model first, then what the package brings along."""

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

from sapwood.errors import SapwoodError
from sapwood.paths import cache_folder

SHIPPED = Path(__file__).parent / "shipped"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
BUILT_IN = "smollm2"  # a name that no folder takes over
LONGEST = 120  # characters of a folder's name; a longer one ends in a hash


def find(kind: str, model: str) -> Path:
    """The folder of this kind of trained part for this model."""
    for folder in places(kind, model):
        if (folder / WEIGHTS).is_file():
            return folder
    raise SapwoodError(f"no trained {kind} for {model}; make one with `sapwood train {kind} --model {model}`")


def has(kind: str, model: str) -> bool:
    """True where this kind of part was trained for this model."""
    return any((folder / WEIGHTS).is_file() for folder in places(kind, model))


def places(kind: str, model: str) -> tuple[Path, Path]:
    """Where a trained part may lie, what the user trained first."""
    return home(kind, model), SHIPPED / safe(model) / safe(kind)


def choose(weights: str, kind: str, model: str) -> Path:
    """The folder that an option names, or the one found for the model where the option is empty."""
    if not weights:
        return find(kind, model)
    folder = Path(weights).expanduser()
    if not (folder / WEIGHTS).is_file():
        raise SapwoodError(f"weights={weights!r} holds no {WEIGHTS}; name the folder of a trained {kind}")
    return folder


def home(kind: str, model: str) -> Path:
    """Where training puts this kind of part for this model."""
    return cache_folder() / "drafters" / safe(named(model)) / safe(kind)


def named(model: str) -> str:
    """A local path in full, so that one model has one name; any other name as it is."""
    path = Path(os.path.expanduser(model))
    return str(path.resolve()) if model != BUILT_IN and path.exists() else model


def safe(name: str) -> str:
    """A folder's name for any text; different texts have different ones."""
    plain = quote(name, safe="+")
    plain = "%2E" + plain[1:] if plain.startswith(".") else plain
    return plain if len(plain) <= LONGEST else f"{plain[:80]}%{hashlib.sha256(name.encode()).hexdigest()}"
