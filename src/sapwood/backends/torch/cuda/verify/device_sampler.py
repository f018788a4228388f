"""Keyed sampling at the rows of a host tree; only the sampled tokens are copied to the host."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.backends.torch.cuda.pass_inputs import LADDER, step_up
from sapwood.backends.torch.cuda.verify.device_verifier import STEPS, Key, NoiseBuffers, kernels
from sapwood.core.array_types import IntArray

MAX_ROWS = 64  # most rows sampled at once


class DeviceSampler:
    """Samples tokens from static logits [rows, vocab]; captured by number of rows."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.device = logits.device
        self.ops = kernels(self.device)
        self.draws = NoiseBuffers(self.device, logits.shape[1])
        cuda = self.device.type == "cuda"
        self.depths, self.target_tokens = torch.zeros(
            2, MAX_ROWS, dtype=torch.int64, device=self.device
        )
        self.host_depths, self.host_tokens = torch.zeros(
            2, MAX_ROWS, dtype=torch.int64, pin_memory=cuda
        )
        self.captured: dict[int, CapturedStep] = {}  # by rows

    @torch.inference_mode()
    def sample(self, depths: IntArray, temperature: float, key: Key) -> IntArray | None:
        """The token drawn at each row with its depth's noise; None if too many or too deep."""
        used = len(depths)
        deepest = int(depths.max())
        if used > MAX_ROWS or deepest >= STEPS:
            return None
        rows = step_up(used, LADDER)
        self.draws.make_noise(deepest + 1, key, temperature)
        host = self.host_depths.numpy()
        host[:used], host[used:] = depths, 0
        step = self.captured.get(rows)
        if step is None:
            step = self.captured[rows] = CapturedStep(partial(self.body, rows), self.device)
        step()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return np.array(self.host_tokens[:used])

    def body(self, rows: int) -> None:
        """The captured step: depths to the device, draws, tokens to the host."""
        draws = self.draws
        logits = self.logits[:rows]
        self.depths.copy_(self.host_depths, non_blocking=True)
        self.ops.keyed_draw(
            logits, draws.gumbel, self.depths, draws.temperature, self.target_tokens
        )
        self.host_tokens[:rows].copy_(self.target_tokens[:rows], non_blocking=True)
