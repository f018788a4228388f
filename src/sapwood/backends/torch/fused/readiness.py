"""Growths that are captured before anybody asks for them: in the middle of a text each would take 20 to 30 ms."""

from collections.abc import Sequence
from typing import Any

import torch

from sapwood.records import Levels

TIMES = 3  # a growth runs as it is, is captured, and is replayed, which takes its time


@torch.inference_mode()
def prepare(grower: Any, several: Sequence[Levels]) -> None:
    """Have a `Grower` grow trees of these levels from nothing; where nothing is captured there is nothing to do."""
    if grower.device.type != "cuda":
        return
    seat, nothing = grower.seat(1), torch.zeros_like(grower.thoughts[:1])
    for levels in several:
        form = grower.form(levels)
        if form is None:
            continue
        for _ in range(TIMES):
            tree, seat.text = grower.grow(seat, nothing, (0,), 1, levels), 0
        torch.cuda.synchronize(grower.device)
        assert tree.pruned.drafting > 0  # from now on its seconds are known
        grower.step(form, follows=True).capture()
    seat.close()
