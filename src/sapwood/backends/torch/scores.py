"""The model's answer for each row of a pass; it stays on the device until asked for."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sapwood.arrays import FloatArray, IntArray


class TorchScores:
    """Logits, and on request hidden states, of the rows of one tree."""

    def __init__(
        self, logits: torch.Tensor | Callable[[], torch.Tensor], hidden: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        self._given = logits  # [n, vocab], or how to compute them
        self._hidden = hidden or {}  # layer -> [n, width]
        self._best: IntArray | None = None

    @cached_property
    def _logits(self) -> torch.Tensor:
        return self._given if isinstance(self._given, torch.Tensor) else self._given()

    @torch.inference_mode()
    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            self._best = self._logits.argmax(-1).cpu().numpy()
        return self._best

    @torch.inference_mode()
    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row and their log-probabilities, both [n, count]."""
        logits = self._logits.float()
        best, tokens = logits.topk(min(count, logits.shape[1]), dim=-1)
        logps = (best - logits.logsumexp(-1, keepdim=True)).double()
        packed = torch.stack((tokens.double(), logps)).cpu().numpy()  # one transfer
        ids, values = packed[0].astype(np.int64), packed[1]
        order = np.lexsort((ids, -values))  # of equals, the lowest id first
        return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)

    @torch.inference_mode()
    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        logits: FloatArray = self._logits[row].float().cpu().numpy()
        return logits

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width], layers in the order asked for."""
        missing = [layer for layer in layers if layer not in self._hidden]
        if missing:
            raise ValueError(f"the inputs of layers {missing} were not kept; call backend.watch({list(layers)}) first")
        return torch.cat([self._hidden[layer][list(rows)] for layer in layers], -1)
