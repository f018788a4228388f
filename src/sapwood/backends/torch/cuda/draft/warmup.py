"""Capture of drafts before the first request: in the middle of a text each takes 20 to 30 ms."""

from collections.abc import Sequence
from typing import Any

import torch

from sapwood.backends.torch.cuda.draft.batch_draft import BATCHES, TEXT_ROWS
from sapwood.backends.torch.cuda.pass_inputs import step_up
from sapwood.core.types import TreeShape
from sapwood.core.whole_tree import BatchShapes

TIMES = 3  # run eagerly, captured, and replayed, which measures its seconds
DEEPEST = 6  # trees of batches that are captured in advance: deeper ones do not pay there
# rows of prompts for which kernels are compiled: all tiles of rows, multiples of 16 and others
PREFILLS = (1, 2, 16, 17, 32, 40, 64, 100, 128, 200, 256, 300, 512)
SLOTS = 4096  # rows of the head that each request of a batch has room for


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
    for rows in PREFILLS:
        prompt = features.new_zeros(rows, features.shape[1])
        builder.read(sequence, prompt, (0,) * rows, 0)
        sequence.text = 0
    sequence.close()
    builder.on_prepared()


@torch.inference_mode()
def prepare_batches(builder: Any, shapes: BatchShapes, requests: int) -> None:
    """Capture the drafts that up to so many requests may share."""
    if builder.device.type != "cuda":
        return
    most = step_up(min(requests, BATCHES[-1]), BATCHES)
    version = builder.pool.version
    builder.pool.reserve(most + 1, SLOTS)  # the scratch sequence too
    if builder.pool.version != version:
        prepare(builder, shapes.drafts)  # those of one request were captured for the smaller pool
    for shape in shapes.drafts:
        sizes = builder.level_sizes(shape)
        if sizes is None or sizes.depth > DEEPEST:
            continue
        for count in BATCHES:
            if count <= most:
                for rows in TEXT_ROWS:
                    builder.batch(count).capture(sizes, rows)
    builder.on_batches_prepared(shapes.rounds, most)
    torch.cuda.synchronize(builder.device)
