"""The target's keyed draws at the rows of a tree that the host knows: only the tokens leave the device."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.backends.torch.fused.capture import Captured
from sapwood.backends.torch.fused.graphs import LADDER, step_up
from sapwood.backends.torch.fused.verify import STEPS, Draws, Key, kernels

MOST = 64  # rows that are drawn at


class Sayer:
    """Draws in buffers that stay where they are, over logits [rows, vocab] that do too."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.device = logits, logits.device
        self.ops, self.draws = kernels(self.device), Draws(self.device, logits.shape[1])
        cuda = self.device.type == "cuda"
        self.depths, self.said = torch.zeros(2, MOST, dtype=torch.int64, device=self.device)
        self.sent, self.told = torch.zeros(2, MOST, dtype=torch.int64, pin_memory=cuda)
        self.captured: dict[int, Captured] = {}  # by rows

    @torch.inference_mode()
    def say(self, depths: IntArray, temperature: float, key: Key) -> IntArray | None:
        """The token drawn at each row, whose depth names its noise; None where they are too many or too deep."""
        used, deepest = len(depths), int(depths.max())
        if used > MOST or deepest >= STEPS:
            return None
        rows = step_up(used, LADDER)
        self.draws.tell(deepest + 1, key, temperature)
        here = self.sent.numpy()
        here[:used], here[used:] = depths, 0
        step = self.captured.get(rows)
        if step is None:
            step = self.captured[rows] = Captured(partial(self.body, rows), self.device)
        step()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return np.array(self.told[:used])

    def body(self, rows: int) -> None:
        """Depths to the device, draws, and their way to the host; what is captured."""
        draws, logits = self.draws, self.logits[:rows]
        self.depths.copy_(self.sent, non_blocking=True)
        self.ops.drawn(logits, draws.gumbel, self.depths, draws.temperature, self.said)
        self.told[:rows].copy_(self.said[:rows], non_blocking=True)
