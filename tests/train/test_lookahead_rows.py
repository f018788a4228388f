"""Training rows behind a text: a target in float16 under autocast, as on a GPU."""

import dataclasses
from typing import Any

import pytest
import torch

from sapwood.train.lookahead_rows import behind_text
from sapwood.train.registry import objective
from tests.helpers.head_training import batch_of, corpus, teacher

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["hidden-transfer", "mask-rows", "gated-masks", "streams", "ppd"])
def test_heads_learn_with_a_target_in_half_precision(kind: str) -> None:
    guide = teacher(torch.float16)
    made: Any = objective(kind)
    names = {field.name for field in dataclasses.fields(made)}
    made = dataclasses.replace(made, rows=2) if "rows" in names else made
    head = made.build(guide, corpus().counts(guide.vocab))
    batch = batch_of(made, guide, [0, 3])
    with torch.autocast("cpu", torch.bfloat16):
        result = made.loss(head, guide, batch)
    result.loss.backward()
    slopes = [weight.grad for weight in head.parameters() if weight.grad is not None]
    assert slopes
    assert all(slope.isfinite().all() for slope in slopes)
    assert any(slope.abs().max() > 0 for slope in slopes)


@pytest.mark.parametrize(
    ("dtype", "joined"),
    [
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_texts_and_rows_are_joined_in_a_type_that_autocast_takes(
    dtype: torch.dtype, joined: torch.dtype
) -> None:
    text, rows = torch.ones(1, 2, 3, dtype=dtype), torch.zeros(1, 1, 3)
    assert behind_text(text, rows).dtype == dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float64):
        found = behind_text(text, rows)
    assert found.dtype == joined
    assert found[0, :, 0].tolist() == [1.0, 1.0, 0.0]
