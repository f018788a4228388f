"""The kernels that keep the nodes of largest reach, against the plain steps."""

import numpy as np
import pytest
import torch

from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.draft import prune_kernel, reference
from sapwood.backends.torch.cuda.draft.device_tree import SIZES, RoundBuffer
from sapwood.backends.torch.cuda.draft.reference import NODES, SCALARS

COLUMNS = ("tokens", "parents", "depths", "ranks", "kept", "probs", "reach")


def fill(round_buffer: RoundBuffer, seed: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A grown tree of random numbers, reach falling along paths and with ties; its depths and ranks."""
    random = np.random.default_rng(seed)
    parents = np.array([-1, *(random.integers(n // 3, n) for n in range(1, size))])
    reach = np.ones(size)
    depths = np.zeros(size, np.int64)
    for node in range(1, size):
        reach[node] = reach[parents[node]] * random.choice([0.5, 0.75, 1.0])
        depths[node] = depths[parents[node]] + 1
    columns = {
        "grown_tokens": random.integers(99, size=size),
        "grown_parents": parents,
        "grown_probs": random.random(size),
        "grown_reach": reach,
    }
    for name, column in columns.items():
        round_buffer.field(name)[:size] = torch.from_numpy(column).to(DEVICE)
    ranks = torch.from_numpy(random.integers(4, size=size)).to(DEVICE)
    return torch.from_numpy(depths).to(DEVICE), ranks


@pytest.mark.parametrize(("size", "nodes"), [(1, 0), (7, 3), (70, 40), (140, 127)])
def test_the_kernels_keep_what_the_plain_steps_keep(size: int, nodes: int) -> None:
    round_buffers = [RoundBuffer(torch.device(DEVICE)) for _ in range(2)]
    facts = torch.zeros(SCALARS, dtype=torch.int64, device=DEVICE)
    facts[NODES] = nodes
    for round_buffer, cut in zip(round_buffers, (prune_kernel.prune, reference.prune), strict=True):
        for name in COLUMNS:
            round_buffer.field(name).fill_(5)  # what an earlier round has left
        depths, ranks = fill(round_buffer, size, size)
        cut(round_buffer, facts, depths, ranks, int(depths.max()))
    found, wanted = round_buffers
    for name in COLUMNS:
        assert torch.equal(found.field(name), wanted.field(name)), name
    used = nodes + 1
    assert torch.equal(found.rows.words[:used], wanted.rows.words[:used])
    assert SIZES["kept"] >= used
