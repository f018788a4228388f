"""A guess, from a state between two layers, at what the output head will read: fitted in seconds, kept for a model.

Early states go through a linear map that is fitted by ridge regression to what came out of the last
layer at the same tokens, of prompts and of text that was written; the target's own output rows speak for the
result. Sums are all that is kept, so that learning goes on where it ended. Wide models are seen through
fixed signs, which bounds what a fit takes.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.paths import keep
from sapwood.rng import uniforms

FEW = 128  # tokens before a first fit says anything
MORE = 1.25  # times as many, and the fit is made again
RIDGE = 0.3  # of each direction's own energy
TINY = 1e-6
MOST = 1024  # numbers of a state that the map reads


class EarlyHead:
    """A linear map from early states to final ones, [width] each."""

    def __init__(self, width: int, path: Path) -> None:
        self.path, self.reads = path, min(width, MOST) + 1
        self.signs = None if width <= MOST else np.sign(uniforms(0, width * MOST) - 0.5).reshape(width, MOST)
        self.inner, self.outer = np.zeros((self.reads, self.reads)), np.zeros((self.reads, width))
        self.seen = self.fitted = self.kept = 0  # tokens learned from, in the present fit, and in the file
        self.map: FloatArray = np.zeros((self.reads, width))
        self._load()

    def learn(self, early: FloatArray, final: FloatArray) -> None:
        """Take in states at the same tokens, both [rows, width]; fit again where much is new."""
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
        self.map = np.linalg.solve(self.inner + np.diag(RIDGE * energy + TINY * energy.mean()), self.outer)
        self.fitted = self.seen

    def guess(self, early: FloatArray) -> FloatArray:
        """Final states of early ones, float32 [rows, width]."""
        found: FloatArray = (self._view(early) @ self.map).astype(np.float32)
        return found

    def _view(self, early: FloatArray) -> FloatArray:
        """What the map reads of each row: its direction, and a one."""
        rows = np.asarray(early, np.float64)
        rows = rows if self.signs is None else rows @ self.signs
        rows = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + TINY)
        return np.append(rows, np.ones((len(rows), 1)), axis=1)

    # ------------------------------------------------------------------------------- between runs
    def save(self) -> None:
        """Keep the sums, where they have grown enough to matter."""
        if self.fitted and self.seen >= MORE * self.kept:
            file = io.BytesIO()
            sums = {"inner": self.inner.astype(np.float32), "outer": self.outer.astype(np.float32)}
            np.savez(file, seen=self.seen, **sums)  # type: ignore[arg-type]
            if keep(self.path, file.getvalue()):
                self.kept = self.seen

    def _load(self) -> None:
        """The sums of earlier runs; what is absent, damaged or of another model is left alone."""
        try:
            with np.load(io.BytesIO(self.path.read_bytes())) as file:
                inner, outer, seen = (file[name] for name in ("inner", "outer", "seen"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return
        if inner.shape == self.inner.shape and outer.shape == self.outer.shape and np.isfinite(inner).all():
            self.inner[:], self.outer[:], self.seen = inner, outer, int(seen)
            self.kept = self.seen
            self._fit()


def numbers(states: Any) -> FloatArray:
    """States on any device as an array, [rows, width]."""
    found: FloatArray = states.float().cpu().numpy()
    return found
