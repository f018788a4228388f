"""Logits of the rows of one tree, on the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.errors import SapwoodError

GROUPS = 64  # places of a row that are compared as one before their own order is looked at


class HostScores:
    """Logits, float32 [n, vocab]."""

    def __init__(self, rows: FloatArray, order: Sequence[int] | IntArray | None = None) -> None:
        self._rows = rows
        # where the row of each node lies
        self._order: IntArray = np.arange(len(rows)) if order is None else np.asarray(order, np.int64)
        self._best: IntArray | None = None

    def tail(self, last: int) -> "HostScores":
        """The last rows."""
        return HostScores(self._rows, self._order[-last:])

    def then(self, rows: FloatArray) -> "HostScores":
        """These rows and further ones."""
        return HostScores(np.concatenate((self._rows[self._order], rows)))

    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            self._best = np.argmax(self._rows, axis=1)[self._order]
        return self._best

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row and their log-probabilities, both [n, count]."""
        rows = [self._rows[place] for place in self._order]
        tokens = [largest(row, min(count, len(row))) for row in rows]
        scratch = np.empty_like(self._rows[0])
        logps = [log_law(row, places, scratch) for row, places in zip(rows, tokens, strict=True)]
        return np.stack(tokens), np.stack(logps)

    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        logits: FloatArray = self._rows[self._order[row]]
        return logits

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """The library shows no layer's input."""
        raise SapwoodError("the llama.cpp backend has no hidden states; use the torch backend")


def largest(row: FloatArray, count: int) -> IntArray:
    """Places of the `count` largest of a row, best first, the lowest of equals first, [count].

    The best of `count` groups are as many large values, so whatever is below the least of them cannot be among
    the largest; few are left to sort.
    """
    group = len(row) // GROUPS
    if count > group:
        return np.argsort(-row, kind="stable")[:count]
    peaks = row[: GROUPS * group].reshape(GROUPS, group).max(axis=0)
    places = np.flatnonzero(row >= np.partition(peaks, -count)[-count])
    return places[np.argsort(-row[places], kind="stable")[:count]]


def log_law(row: FloatArray, places: IntArray, scratch: FloatArray) -> FloatArray:
    """Log-probabilities of these tokens, the best of which comes first, float64 [places]."""
    peak = row[places[0]]
    mass = np.exp(np.subtract(row, peak, out=scratch), out=scratch).sum()
    law: FloatArray = (row[places] - peak).astype(np.float64) - np.log(mass, dtype=np.float64)
    return law
