"""Linear map from hidden states of an early layer to those of the last, fitted online.

Early states go through a linear map fitted by ridge regression to the last layer's states at the
same tokens, of prompts and of generated text; the target's own output head turns the result into
logits. Only sums are stored, one file per model, so that fitting continues in the next run. States
of wide models are first projected by fixed random signs, which bounds the cost of a fit.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.cache_dir import write_cached
from sapwood.core.array_types import FloatArray
from sapwood.core.rng import uniforms

FEW = 128  # tokens before the first fit
MORE = 1.25  # growth of the number of tokens after which the fit is repeated
RIDGE = 0.3  # of each direction's own energy
TINY = 1e-6
MOST = 1024  # numbers of a state that the map reads


class EarlyHead:
    """A linear map from early states to final ones, [width] each."""

    def __init__(self, width: int, path: Path) -> None:
        self.path = path
        self.reads = min(width, MOST) + 1
        self.signs = (
            None if width <= MOST else np.sign(uniforms(0, width * MOST) - 0.5).reshape(width, MOST)
        )
        self.inner = np.zeros((self.reads, self.reads))
        self.outer = np.zeros((self.reads, width))
        # tokens: in the sums, in the present fit, and in the file
        self.seen = self.fitted = self.kept = 0
        self.map: FloatArray = np.zeros((self.reads, width))
        self._load()

    def learn(self, early: FloatArray, final: FloatArray) -> None:
        """Add states at the same tokens, both [rows, width]; fit again after enough new ones."""
        rows = self._view(early)
        if not (np.isfinite(rows).all() and np.isfinite(final).all()):
            return
        self.inner += rows.T @ rows
        self.outer += rows.T @ final
        self.seen += len(rows)
        self._fit()

    def _fit(self) -> None:
        if self.seen < max(FEW, MORE * self.fitted):
            return
        energy = np.diag(self.inner)
        self.map = np.linalg.solve(
            self.inner + np.diag(RIDGE * energy + TINY * energy.mean()), self.outer
        )
        self.fitted = self.seen

    def guess(self, early: FloatArray) -> FloatArray:
        """Predicted final states of early ones, float32 [rows, width]."""
        found: FloatArray = (self._view(early) @ self.map).astype(np.float32)
        return found

    def _view(self, early: FloatArray) -> FloatArray:
        """Inputs of the map: each row normalised, and a one for the offset."""
        rows = np.asarray(early, np.float64)
        rows = rows if self.signs is None else rows @ self.signs
        rows = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + TINY)
        return np.append(rows, np.ones((len(rows), 1)), axis=1)

    def save(self) -> None:
        """Write the sums to the file, if enough tokens were added."""
        if self.fitted and self.seen >= MORE * self.kept:
            file = io.BytesIO()
            sums = {"inner": self.inner.astype(np.float32), "outer": self.outer.astype(np.float32)}
            np.savez(file, seen=self.seen, **sums)  # type: ignore[arg-type]
            if write_cached(self.path, file.getvalue()):
                self.kept = self.seen

    def _load(self) -> None:
        """Load the sums of earlier runs; ignore a file that is missing, damaged or mismatched."""
        try:
            with np.load(io.BytesIO(self.path.read_bytes())) as file:
                inner, outer, seen = (file[name] for name in ("inner", "outer", "seen"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return
        if (
            inner.shape == self.inner.shape
            and outer.shape == self.outer.shape
            and np.isfinite(inner).all()
        ):
            self.inner[:], self.outer[:], self.seen = inner, outer, int(seen)
            self.kept = self.seen
            self._fit()


def numbers(states: Any) -> FloatArray:
    """States on any device as an array, [rows, width]."""
    found: FloatArray = states.float().cpu().numpy()
    return found
