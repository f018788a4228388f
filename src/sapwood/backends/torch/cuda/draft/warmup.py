"""Capture of drafts before the first request: in the middle of a text each takes 20 to 30 ms."""

from collections.abc import Sequence
from typing import Any

import torch

from sapwood.core.types import TreeShape

TIMES = 3  # run eagerly, captured, and replayed, which measures its seconds


@torch.inference_mode()
def prepare(builder: Any, shapes: Sequence[TreeShape]) -> None:
    """Have a `CudaTreeBuilder` draft trees of these shapes, so that they are captured and timed."""
    if builder.device.type != "cuda":
        return
    sequence = builder.open(1)
    features = torch.zeros_like(builder.hidden_states[:1])
    for shape in shapes:
        sizes = builder.level_sizes(shape)
        if sizes is None:
            continue
        for _ in range(TIMES):
            tree = builder.grow(sequence, features, (0,), 1, shape)
            sequence.text = 0
        torch.cuda.synchronize(builder.device)
        assert tree.pruned.drafting > 0  # this stores its seconds
        builder.step(sizes, follows=True).capture()
    sequence.close()
