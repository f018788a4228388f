"""Draws at the rows of a host tree: rows, depths and what is refused."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.verify import device_verifier
from sapwood.backends.torch.cuda.verify.device_sampler import MAX_ROWS, DeviceSampler
from sapwood.backends.torch.cuda.verify.device_verifier import STEPS

VOCAB = 40


def key(depth: int) -> int:
    return 77 + depth


@pytest.fixture
def logits() -> torch.Tensor:
    return 2 * torch.randn(128, VOCAB, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, MAX_ROWS])
def test_each_row_is_drawn_with_the_noise_of_its_depth(logits: torch.Tensor, rows: int) -> None:
    depths = np.arange(rows) % 5
    found = DeviceSampler(logits).sample(depths, 0.7, key)
    wanted = device_verifier.sample_rows(
        logits[:rows], torch.from_numpy(depths), 0.7, [key(depth) for depth in range(5)]
    )
    assert found is not None
    assert found.tolist() == wanted.tolist()


def test_a_smaller_tree_after_a_larger_one(logits: torch.Tensor) -> None:
    sampler = DeviceSampler(logits)
    first = sampler.sample(np.array([0, 1, 2, 3, 3, 3, 3]), 0.9, key)
    second = sampler.sample(np.array([0, 1, 1, 2, 2]), 0.9, key)
    alone = DeviceSampler(logits).sample(np.array([0, 1, 1, 2, 2]), 0.9, key)
    assert first is not None
    assert second is not None
    assert alone is not None
    assert second.tolist() == alone.tolist()
    assert len(first) == 7  # what was drawn first is a copy


def test_new_logits_in_the_same_buffer_are_drawn_from(logits: torch.Tensor) -> None:
    sampler = DeviceSampler(logits)
    sampler.sample(np.zeros(3, np.int64), 0.5, key)
    logits[:] = 0
    logits[:, 9] = 1000
    found = sampler.sample(np.zeros(3, np.int64), 0.5, key)
    assert found is not None
    assert found.tolist() == [9, 9, 9]


def test_trees_that_are_too_large_or_too_deep_are_left_to_the_host(logits: torch.Tensor) -> None:
    sampler = DeviceSampler(logits)
    assert sampler.sample(np.zeros(MAX_ROWS + 1, np.int64), 0.5, key) is None
    assert sampler.sample(np.array([0, STEPS]), 0.5, key) is None
    assert sampler.sample(np.array([0, STEPS - 1]), 0.5, key) is not None


def test_few_numbers_of_rows_are_captured(logits: torch.Tensor) -> None:
    sampler = DeviceSampler(logits)
    for rows in range(1, MAX_ROWS + 1):
        sampler.sample(np.zeros(rows, np.int64), 0.5, key)
    assert sorted(sampler.captured) == [1, 2, 4, 8, 16, 32, 64]
