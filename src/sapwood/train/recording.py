"""Recordings of decoded prompts as arrays in one safetensors file.

A recording that was interrupted goes on after its last saved prompt.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.errors import SapwoodError

SAVE = 8  # prompts between two saves

Over = Callable[[int], bool]  # number of finished prompts -> True to begin no further one
Progress = Callable[[str], None]


def never(_: int) -> bool:
    """False: go on to the last prompt."""
    return False


def silent(_: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class ArrayRecord:
    """Rows of one or many prompts; every field is an array."""

    contents: ClassVar[str] = "rows"  # the word for them in messages
    prompt: IntArray  # [rows] number of the prompt

    def __len__(self) -> int:
        return len(self.prompt)

    def save(self, path: Path, notes: dict[str, Any]) -> None:
        """Write all arrays atomically."""
        from safetensors.numpy import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            field.name: np.ascontiguousarray(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }
        draft = path.with_suffix(".tmp")
        save_file(arrays, draft, metadata={"notes": json.dumps(notes)})
        draft.replace(path)


Kind = TypeVar("Kind", bound=ArrayRecord)


def load(path: Path, kind: type[Kind]) -> tuple[Kind, dict[str, Any]]:
    """A recording and its notes: model, recipe, prompts that are done."""
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file

    try:
        with safe_open(path, "numpy") as file:
            notes: dict[str, Any] = json.loads(file.metadata()["notes"])
        return kind(**load_file(path)), notes
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SapwoodError(
            f"{path} is no recording of {kind.contents}; delete it to record anew"
        ) from error


def join(parts: Sequence[Kind]) -> Kind:
    """Several recordings as one."""
    names = [field.name for field in dataclasses.fields(parts[0])]
    return type(parts[0])(
        **{name: stacked([getattr(part, name) for part in parts]) for name in names}
    )


def stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of all parts; NaN where a part has no states and others do."""
    width = max(part.shape[-1] for part in parts)
    if parts[0].ndim == 1 or all(part.shape[1] == width for part in parts):
        return np.concatenate(parts)
    blank = [np.full((len(part), width), np.nan, part.dtype) for part in parts]
    return np.concatenate(
        [part if part.shape[1] else empty for part, empty in zip(parts, blank, strict=True)]
    )


def collect(
    kind: type[Kind],
    each: Callable[[int], list[Kind]],  # decodes the prompt of this number
    prompts: int,
    path: Path | None,  # None: nothing is kept on disk
    notes: dict[str, Any],  # description of the recording
    *,
    most: int,  # rows after which no further prompt is begun
    over: Over,
    progress: Progress,
) -> list[Kind]:
    """Records of all prompts, including those of an earlier call with the same notes."""
    found, done = resume(path, notes, kind)
    begun, kept = done, done
    while done < prompts and sum(map(len, found)) < most and not (done > begun and over(done)):
        found += each(done)
        done += 1
        if done % SAVE == 0:
            found = keep(found, path, {**notes, "done": done})
            kept = done
            progress(f"recorded {sum(map(len, found))} {kind.contents} of {done} prompts")
    return found if kept == done else keep(found, path, {**notes, "done": done})


def keep(found: list[Kind], path: Path | None, notes: dict[str, Any]) -> list[Kind]:
    """Write the records, joined into one."""
    if not found:
        return found
    whole = join(found)
    if path is not None:
        whole.save(path, notes)
    return [whole]


def resume(path: Path | None, notes: dict[str, Any], kind: type[Kind]) -> tuple[list[Kind], int]:
    """The records so far, and the first prompt that is missing."""
    if path is None or not path.exists():
        return [], 0
    rounds, old = load(path, kind)
    done = int(old.pop("done", 0))
    other = [key for key in notes if old.get(key) != notes[key]]
    if other:
        raise SapwoodError(
            f"{path} was recorded with another {other[0]}; delete it or name another file"
        )
    return [rounds], done
