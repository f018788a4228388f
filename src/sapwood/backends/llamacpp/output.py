"""Logits of the rows of one tree, on the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.common.top_tokens import top_tokens
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import TargetOutput
from sapwood.errors import SapwoodError


class LlamaCppOutput(TargetOutput):
    """Logits, float32 [n, vocab]."""

    def __init__(self, rows: FloatArray, order: Sequence[int] | IntArray | None = None) -> None:
        self._rows = rows
        # the row of each node
        self._order: IntArray = (
            np.arange(len(rows)) if order is None else np.asarray(order, np.int64)
        )
        self._best: IntArray | None = None

    def tail(self, last: int) -> "LlamaCppOutput":
        """The last rows."""
        return LlamaCppOutput(self._rows, self._order[-last:])

    def then(self, rows: FloatArray) -> "LlamaCppOutput":
        """These rows and further ones."""
        return LlamaCppOutput(np.concatenate((self._rows[self._order], rows)))

    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            self._best = np.argmax(self._rows, axis=1)[self._order]
        return self._best

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row and their log-probabilities, both [n, count]."""
        return top_tokens([self._rows[place] for place in self._order], count)

    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        logits: FloatArray = self._rows[self._order[row]]
        return logits

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Refused: llama.cpp gives no hidden states."""
        raise SapwoodError("the llama.cpp backend has no hidden states; use the torch backend")
