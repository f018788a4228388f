"""Fingerprint of a model's weights: samples of a few tensors, compared within rounding errors.

A trained head belongs to weights, whatever the file is called and in whichever format it is. Hashes
cannot tell that, since every format rounds the weights in its own way. So a fingerprint holds
values: a few rows of the embedding and of matrices of the first, the middle and the last layer.
Queries, keys and norms are left out, as formats store them permuted or shifted.

Two fingerprints are of the same weights when, in each common tensor, the mean square of their
difference is explained by rounding. Block formats round to a grid of some step d, which adds
d**2 / 12, and the step is read off the values themselves: those of a block lie on a grid, while
floating-point numbers do not. Floats add a relative error of 2**-9 at most, bfloat16's.

No other model matches. Weights of independent trainings are uncorrelated, so their mean square
difference is the sum of both mean squares, and what is tolerated is limited to a quarter of the
smaller one, with some 500 values for each of up to 16 tensors that all have to match. A fine-tune
is told apart once it has moved a sampled matrix by more than about 0.6 of the rounding error: 0.4 %
of its weights where both are floats, about 4 % where one has 4 bits. What it changes below that is
less than quantising changes, which the head stands anyway; and as the target verifies every draft,
a head of the wrong model could cost speed only, never a wrong token. Formats of codebooks (IQ1 to
IQ3) err more than their grid tells, so they match files of their own format only.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.cache_dir import write_cached
from sapwood.core.array_types import FloatArray

FILE = "target.json"  # in the folder of a trained part, or in the folder above
FORMAT = 1
ROWS, COLUMNS = 8, 64  # sampled of each matrix
BLOCK = 16  # values that share a grid in every block format
ON_GRID = 0.05  # most deviation of a value from the grid, in steps
FEW = 12  # distinct values up to which a block is of a codebook, if it has no grid
# tolerated mean square against d**2 / 12; at most 1.05 was measured, in eleven formats of GGUF
EXCESS = 1.3
FLOAT = 2.0**-8  # tolerated relative difference of floats
MOST = 0.25  # of the smaller mean square: beyond that, no rounding explains a difference
EMBEDDING = "token_embd"


@dataclass(frozen=True, slots=True)
class TensorSample:
    """Some values of a matrix, and the step of the grid to which they are rounded."""

    shape: tuple[int, ...]
    values: FloatArray  # float16 [rows * columns]
    step: float  # root mean square over blocks; 0 for floats

    @classmethod
    def of(cls, shape: tuple[int, ...], rows: FloatArray) -> "TensorSample":
        """The sample of a matrix with these rows of it, [ROWS, columns]."""
        values = rows[:, :COLUMNS].astype(np.float32)
        return cls(shape, values.astype(np.float16).ravel(), grid_step(values))

    def matches(self, other: "TensorSample") -> bool:
        """True when rounding explains all differences between the two."""
        if self.shape != other.shape or self.values.shape != other.values.shape:
            return False
        mine, theirs = self.values.astype(np.float64), other.values.astype(np.float64)
        power = min(float(np.mean(mine**2)), float(np.mean(theirs**2)))
        rounding = EXCESS * (self.step**2 + other.step**2) / 12 + FLOAT**2 * power
        return float(np.mean((mine - theirs) ** 2)) <= min(rounding, MOST * power)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Samples of a model's weights, by tensor name as in GGUF files."""

    tensors: Mapping[str, TensorSample]

    def matches(self, other: "Fingerprint") -> bool:
        """True when both are of the same weights, in whichever format."""
        common = self.tensors.keys() & other.tensors.keys()
        most = max(len(self.tensors), len(other.tensors))
        if EMBEDDING not in common or 2 * len(common) < most:
            return False
        return all(self.tensors[name].matches(other.tensors[name]) for name in common)

    @property
    def digest(self) -> str:
        """Twelve hex digits of these very values: the same weights in another format differ."""
        digest = hashlib.sha256()
        for name, sample in sorted(self.tensors.items()):
            digest.update(f"{name} {sample.shape}".encode() + sample.values.tobytes())
        return digest.hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The samples, as they are stored."""
        tensors = {
            name: {
                "shape": list(sample.shape),
                "step": sample.step,
                "values": base64.b64encode(sample.values.astype("<f2").tobytes()).decode(),
            }
            for name, sample in sorted(self.tensors.items())
        }
        return {"format": FORMAT, "tensors": tensors}

    @classmethod
    def from_json(cls, record: Any) -> "Fingerprint | None":
        """Read stored samples; None if they are damaged or of another format."""
        try:
            if record["format"] != FORMAT:
                return None
            return cls({name: decode(one) for name, one in record["tensors"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            return None

    def save(self, folder: Path) -> None:
        """Write it beside a trained part."""
        write_cached(folder / FILE, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> "Fingerprint | None":
        """The fingerprint stored with a trained part; None if there is none that can be read."""
        for place in (folder / FILE, folder.parent / FILE):
            try:
                found = cls.from_json(json.loads(place.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                continue
            if found is not None:
                return found
        return None


def decode(record: Any) -> TensorSample:
    """A sample from JSON."""
    values = np.frombuffer(base64.b64decode(record["values"]), "<f2").astype(np.float16)
    return TensorSample(tuple(map(int, record["shape"])), values, float(record["step"]))


def sampled_rows(count: int) -> list[int]:
    """Indices of the sampled rows of a matrix with so many rows, evenly spread."""
    return [(2 * i + 1) * count // (2 * ROWS) for i in range(ROWS)]


def sampled_layers(count: int) -> list[int]:
    """Indices of the sampled layers."""
    return sorted({0, count // 2, count - 1}) if count else []


def grid_step(values: FloatArray) -> float:
    """Root mean square of the steps of the blocks' grids, [rows, columns]; 0 for floats."""
    columns = values.shape[1] // BLOCK * BLOCK
    blocks = values[:, :columns].reshape(-1, BLOCK)
    steps = [step for block in blocks if (step := block_step(block)) is not None]
    if 2 * len(steps) < len(blocks) or not steps:
        return 0.0
    return float(np.sqrt(np.mean(np.square(steps))))


def block_step(block: FloatArray) -> float | None:
    """Step of the grid on which a block's values lie; None if they are on none."""
    levels = np.unique(block.astype(np.float64))
    if len(levels) < 2:  # all equal, which says nothing
        return None
    gaps = np.diff(levels)
    # equal levels may differ in the last bit
    gaps = gaps[gaps > 1e-5 * np.abs(levels).max()]
    if not len(gaps):
        return None
    step = float(gaps.min())
    span = float(gaps.sum())
    step = span / max(round(span / step), 1)  # the widest span tells it best
    multiples = np.cumsum(gaps) / step
    if np.abs(multiples - np.round(multiples)).max() <= ON_GRID:
        return step
    return float(gaps.mean()) if len(gaps) < FEW else None
