"""Scores of the tokens of a prompt: log-probabilities, or one vector for the whole text.

The prompt is scored in passes of chains instead of a prefill, which computes the same keys and
values but no output. A reader collects what it needs of each pass.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sapwood.common.numpy_mlp import as_float32
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, TargetOutput
from sapwood.core.tree import Tree
from sapwood.engine.outputs import Logprob, log_probabilities

ROWS = 128  # rows of a pass over prompts; their logits are held in memory


class PromptReader(Protocol):
    """Collects scores of a prompt's tokens; requests of one prompt may share it."""

    complete: bool  # the whole prompt has been read

    def restart(self, target: Backend) -> None:
        """Begin, or begin again: the prompt is scored from its first token."""

    def read(self, output: TargetOutput, count: int, following: Sequence[int]) -> None:
        """Read a pass of `count` tokens; `following` are the tokens after each of them."""


class PromptLogprobs:
    """Log-probability of every token of a prompt but the first, with alternatives."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.complete = False
        self.logprobs: list[Logprob] = []

    def restart(self, target: Backend) -> None:
        """Begin, or begin again."""
        self.logprobs = []

    def read(self, output: TargetOutput, count: int, following: Sequence[int]) -> None:
        """Add the log-probabilities of the tokens that follow."""
        for row, token in zip(range(count), following, strict=False):
            self.logprobs.append(log_probabilities(output.logits(row), token, self.top))


class MeanState:
    """Mean of the final hidden states of a prompt's tokens, [width]."""

    def __init__(self) -> None:
        self.complete = False
        self._layer = 0
        self._sum: FloatArray | None = None
        self._count = 0

    def restart(self, target: Backend) -> None:
        """Begin, or begin again; the target keeps the input of its output head from now on."""
        self._layer = target.capabilities.layers
        target.watch([self._layer])
        self._sum = None
        self._count = 0

    def read(self, output: TargetOutput, count: int, following: Sequence[int]) -> None:
        """Add the hidden states of these tokens."""
        states = as_float32(output.hidden(range(count), [self._layer]))
        added: FloatArray = states.sum(0, dtype=np.float64)
        self._sum = added if self._sum is None else self._sum + added
        self._count += count

    @property
    def vector(self) -> FloatArray:
        """The mean, with a Euclidean length of 1."""
        assert self._sum is not None
        mean = self._sum / self._count
        unit: FloatArray = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return unit


def chain(tokens: Sequence[int]) -> Tree:
    """A tree of one path."""
    count = len(tokens)
    return Tree.from_columns(
        np.array(tokens, np.int64), np.arange(-1, count - 1), np.arange(count), np.ones(count)
    )
