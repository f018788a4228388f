"""Passes over the roots of many sessions, launched before the host has read the pass before."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS
from sapwood.backends.torch.cuda.verify.device_verifier import kernels, signed
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import TargetOutput

RING = 4  # passes whose transfers may be under way: one is read while the next one runs

Features = Callable[[tuple[int, ...]], Tensor]  # of layers, [rows, layers * width]


class RootOutput(TargetOutput):
    """One row of a pass over roots: its next token and its hidden states."""

    def __init__(self, token: int, row: int, features: Features) -> None:
        self._token = token
        self._row = row
        self._features = features

    def argmax(self) -> IntArray:
        """The next token, which is the best one at temperature 0."""
        return np.array([self._token])

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Refused: the logits are gone."""
        raise ValueError(GONE)

    def logits(self, row: int) -> FloatArray:
        """Refused: the logits are gone."""
        raise ValueError(GONE)

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of the row on the device, [1, layers * width]."""
        return self._features(tuple(layers))[self._row : self._row + 1]

    def shared_features(self, layers: Sequence[int]) -> tuple[Tensor, int]:
        """Hidden states of all rows of the pass, and the row of this output."""
        return self._features(tuple(layers)), self._row


GONE = "a later pass overwrote these logits; score the tree in a pass of its own"


class CudaRoots:
    """A launched pass over roots; its tokens are on their way to a buffer on the host."""

    def __init__(self, host: IntArray, arrival: Any, features: Features) -> None:
        self._host = host
        self._arrival = arrival
        self._features = features
        self._tokens: IntArray | None = None

    def next_tokens(self) -> IntArray:
        """Wait for the pass; the next token of each row."""
        if self._tokens is None:
            if self._arrival is not None:
                self._arrival.synchronize()
            self._tokens = self._host.copy()
        return self._tokens

    def outputs(self) -> list[TargetOutput]:
        """Next token and hidden states of each row."""
        return [
            RootOutput(token, row, self._features)
            for row, token in enumerate(self.next_tokens().tolist())
        ]


class NextTokens:
    """Draws the next token of each root on the device and copies it to the host."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # parts of it have no types
        pinned = device.type == "cuda"
        self.ops = kernels(device)
        self.words = torch.zeros(2, MAX_ROWS, dtype=torch.int64, device=device)
        # keys and temperatures of the rows, then their tokens
        self.host = [
            torch.zeros(3, MAX_ROWS, dtype=torch.int64, pin_memory=pinned) for _ in range(RING)
        ]
        self.arrivals: list[Any] = [cuda.Event() if pinned else None for _ in range(RING)]
        self.ring_index = 0

    def send(
        self,
        logits: Tensor,  # [rows, vocab]
        best: Tensor,  # [rows], replaced by the draws
        temperatures: Sequence[float],
        keys: Sequence[int],
    ) -> tuple[IntArray, Any]:
        """Launch the draws; the host's buffer of the tokens, and the event of their arrival."""
        self.ring_index = (self.ring_index + 1) % RING
        host = self.host[self.ring_index]
        rows = len(best)
        if any(temperatures):
            numbers = host.numpy()
            numbers[0, :rows] = [signed(key) for key in keys]
            numbers[1, :rows].view(np.float64)[:] = temperatures
            self.words.copy_(host[:2], non_blocking=True)
            self.ops.draw_rows(
                logits, self.words[0, :rows], self.words[1, :rows].view(torch.float64), best
            )
        host[2, :rows].copy_(best, non_blocking=True)
        arrival = self.arrivals[self.ring_index]
        if arrival is not None:
            arrival.record()
        return host.numpy()[2, :rows], arrival
