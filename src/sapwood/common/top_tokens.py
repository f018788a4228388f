"""The best tokens of rows of logits on the host, in one thread.

A library's own top-k and logsumexp are made for many rows and many threads. A round of decoding has
few rows, and further threads would wait for cores on which those of the last pass still spin.
"""

from collections.abc import Sequence

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray

GROUPS = 64  # logits of a row that are compared by their maximum first


def top_tokens(rows: Sequence[FloatArray] | FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """Best tokens of each row of logits and their log-probabilities, both [rows, count]."""
    tokens = [largest(row, min(count, len(row))) for row in rows]
    scratch = np.empty_like(rows[0])
    logps = [log_probs(row, places, scratch) for row, places in zip(rows, tokens, strict=True)]
    return np.stack(tokens), np.stack(logps)


def largest(row: FloatArray, count: int) -> IntArray:
    """Indices of the `count` largest of a row, best first, the lowest first on ties, [count].

    The best of `count` groups are as many large values, so whatever is below the least of them
    cannot be among the largest; few are left to sort.
    """
    group = len(row) // GROUPS
    if count > group:
        return np.argsort(-row, kind="stable")[:count]
    peaks = row[: GROUPS * group].reshape(GROUPS, group).max(axis=0)
    places = np.flatnonzero(row >= np.partition(peaks, -count)[-count])
    return places[np.argsort(-row[places], kind="stable")[:count]]


def log_probs(row: FloatArray, places: IntArray, scratch: FloatArray) -> FloatArray:
    """Log-probabilities of these tokens, the best of which comes first, float64 [places]."""
    peak = row[places[0]]
    mass = np.exp(np.subtract(row, peak, out=scratch), out=scratch).sum()
    probs: FloatArray = (row[places] - peak).astype(np.float64) - np.log(mass, dtype=np.float64)
    return probs
