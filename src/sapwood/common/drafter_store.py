"""Folders of trained parts: those that the user trained, then those shipped with the package."""

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sapwood.common.cache_dir import cache_folder
from sapwood.common.fingerprint import FILE as TARGET
from sapwood.common.fingerprint import Fingerprint
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError

SHIPPED = Path(__file__).parents[1] / "shipped"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
BUILT_IN = "smollm2"  # always the built-in model, also where a folder has this name
HIDE = "SAPWOOD_NO_HEADS"  # environment variable: use no trained part that is not named
SET_ASIDE = "set-aside.txt"  # says in a part's folder why it is not used
LONGEST = 120  # characters of a folder's name; a longer one ends in a hash


_IGNORED: set[Path] = set()  # folders that this process takes for missing


@dataclass(frozen=True, slots=True)
class StoreMatch:
    """A trained part for a model, and one of its name that is not used."""

    folder: Path | None
    stale: Path | None = None  # trained for other weights
    idle: Path | None = None  # set aside


def search(kind: str, model: str, weights: Fingerprint | None = None) -> StoreMatch:
    """Look for a part that was trained for these weights; one without a fingerprint goes by name.

    The user's own come before shipped ones, and those of this name before others.
    """
    if hidden():
        return StoreMatch(None)
    stale: Path | None = None
    idle: Path | None = None
    for store, named_folder in (
        (cache_folder() / "drafters", safe(named(model))),
        (SHIPPED, safe(model)),
    ):
        own = store / named_folder / safe(kind)
        if (own / WEIGHTS).is_file():
            if fits(own, weights) is False:
                stale = stale or own
            elif usable(own):
                return StoreMatch(own)
            else:
                idle = idle or own
        others = [] if weights is None else trained_parts(store, kind)
        for folder in others:
            if folder != own and fits(folder, weights) and usable(folder):
                return StoreMatch(folder)
    return StoreMatch(None, stale, idle)


def usable(folder: Path) -> bool:
    """True when the part of a folder is not set aside."""
    return folder not in _IGNORED and not (folder / SET_ASIDE).is_file()


@contextmanager
def ignored(folder: Path) -> Iterator[None]:
    """Take a part for missing, to compare recipes with and without it."""
    _IGNORED.add(folder)
    try:
        yield
    finally:
        _IGNORED.discard(folder)


def set_aside(folder: Path, reason: str) -> None:
    """Keep a part without using it; deleting the file with the reason brings it back."""
    (folder / SET_ASIDE).write_text(f"{reason}\n", encoding="utf-8")


def bring_back(folder: Path) -> None:
    """Use a part that was set aside."""
    (folder / SET_ASIDE).unlink(missing_ok=True)


def fits(folder: Path, weights: Fingerprint | None) -> bool | None:
    """True when a part was trained for these weights; None if that is not known."""
    trained_for = None if weights is None else Fingerprint.read(folder)
    if weights is None or trained_for is None:
        return None
    return weights.matches(trained_for)


def trained_parts(store: Path, kind: str) -> list[Path]:
    """Folders of all parts of a kind, the newest first."""
    found = [path.parent for path in store.glob(f"*/{glob.escape(safe(kind))}/{WEIGHTS}")]
    return sorted(found, key=lambda folder: -(folder / WEIGHTS).stat().st_mtime_ns)


def find(kind: str, model: str, weights: Fingerprint | None = None) -> Path:
    """The folder of this kind of trained part for this model."""
    match = search(kind, model, weights)
    if match.folder is not None:
        return match.folder
    if match.stale is not None:
        raise SapwoodError(refusal(match.stale, kind, model))
    if match.idle is not None and (match.idle / SET_ASIDE).is_file():
        reason = (match.idle / SET_ASIDE).read_text(encoding="utf-8").strip()
        raise SapwoodError(
            f"the {kind} in {match.idle} is set aside, as {reason}; train it longer, "
            f"or delete {SET_ASIDE} there to use it"
        )
    raise SapwoodError(
        f"no trained {kind} for {model}; make one with `sapwood train {kind} --model {model}`"
    )


def refusal(folder: Path, kind: str, model: str) -> str:
    """One sentence about a part that was trained for other weights."""
    return (
        f"the {kind} in {folder} was trained for other weights than {model} holds now; "
        f"train one for these with `sapwood train {kind} --model {model}`"
    )


def has(kind: str, model: str, weights: Fingerprint | None = None) -> bool:
    """True when this kind of part was trained for this model."""
    return search(kind, model, weights).folder is not None


def hidden() -> bool:
    """True when trained parts are hidden, to compare with and without them."""
    return os.environ.get(HIDE, "") not in ("", "0")


def choose(weights: str, kind: str, model: str, fingerprint: Fingerprint | None = None) -> Path:
    """The folder that an option names; if it is empty, the one found for the model."""
    if not weights:
        return find(kind, model, fingerprint)
    folder = Path(weights).expanduser()
    if not (folder / WEIGHTS).is_file():
        raise SapwoodError(
            f"weights={weights!r} holds no {WEIGHTS}; name the folder of a trained {kind}"
        )
    check_target(folder, kind, model, fingerprint)
    return folder


def check_target(folder: Path, kind: str, model: str, weights: Fingerprint | None) -> None:
    """Refuse a part that was trained for other weights."""
    if fits(folder, weights) is False:
        raise SapwoodError(
            f"{refusal(folder, kind, model)}, or delete its {TARGET} to use it all the same"
        )


def home(kind: str, model: str, weights: Fingerprint | None = None) -> Path:
    """The folder in which training stores this kind of part for this model.

    Where the name stands for other weights by now, the part of the earlier ones is kept.
    """
    store = cache_folder() / "drafters"
    folder = store / safe(named(model)) / safe(kind)
    if weights is None or fits(folder, weights) is not False:
        return folder
    return store / safe(f"{named(model)}@{weights.digest}") / safe(kind)


def named(model: str) -> str:
    """The absolute path of a local model, so that it has one name; else the name as it is."""
    path = Path(os.path.expanduser(model))
    return str(path.resolve()) if model != BUILT_IN and path.exists() else model


def safe(name: str) -> str:
    """A folder name for any text, different for different texts."""
    plain = quote(name, safe="+")
    plain = "%2E" + plain[1:] if plain.startswith(".") else plain
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[:80]}%{hashlib.sha256(name.encode()).hexdigest()}"


# ------------------------------------------------------------------------------------- heads
def head_digest(head: object, kind: str, info: BackendInfo) -> str:
    """Digest of a head's file, by its folder or the one found for a model; empty of an object."""
    if not isinstance(head, str):
        return ""
    folder = Path(head).expanduser() if head else find(kind, info.model, info.weights)
    files = [folder / WEIGHTS, *sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    file = next((file for file in files if file.is_file()), None)
    return "" if file is None else file_digest(file)


def file_digest(file: Path) -> str:
    """Sixteen hex digits of a file's content."""
    key = file, file.stat().st_mtime_ns
    if key not in _DIGESTS:
        with file.open("rb") as stream:
            _DIGESTS[key] = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    return _DIGESTS[key]


_DIGESTS: dict[tuple[Path, int], str] = {}  # by file and time of its last change


def check_heads(
    folder: Path, kind: str, model: str, fitted: Mapping[str, str], used: Mapping[str, str]
) -> None:
    """Refuse a predictor that was fitted to other heads than the drafter uses."""
    for name, digest in fitted.items():
        if used.get(name, "") != digest:
            rest = "another one is in use" if name in used else "this drafter uses none"
            raise SapwoodError(
                f"the {kind} in {folder} was fitted to one {name} head and {rest}; "
                f"fit it again with `sapwood train {kind} --model {model}`"
            )
