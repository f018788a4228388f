"""Norms over whole rows of queries and keys, against float64."""

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.kernels.row_norms import turn_rows

EPS = 1e-3


@pytest.mark.parametrize("heads", [HeadSizes(3, 1, 20), HeadSizes(4, 2, 16)], ids=str)
def test_rows_are_normed_turned_and_kept(heads: HeadSizes) -> None:
    torch.manual_seed(1)
    width, slots, m = heads.width, 9, 3
    made = torch.randn(m, heads.all * width, device=DEVICE)
    norms = tuple(torch.randn(n * width, device=DEVICE) for n in (heads.queries, heads.keys))
    turns = torch.rand(m, width // 2, device=DEVICE, dtype=torch.float64)
    angles = torch.cat((turns.cos(), turns.sin()), 1).float()
    where = torch.tensor([7, -1, 2], device=DEVICE)
    queries = made.new_full((m, heads.queries, width), torch.nan)
    planes = made.new_full((2, slots, heads.keys, width), torch.nan)
    turn_rows(
        made, queries, planes, heads=heads, norms=(norms[0], norms[1]), eps=EPS, angles=angles,
        slots=where,
    )  # fmt: skip
    ends = heads.queries * width, (heads.queries + heads.keys) * width
    parts = list(made.double().tensor_split(ends, 1))
    for i, norm in enumerate(norms):
        size = (parts[i].square().mean(1, keepdim=True) + EPS).rsqrt()
        low, high = (parts[i] * size * norm.double()).view(m, -1, width).chunk(2, -1)
        cosine, sine = turns.cos()[:, None], turns.sin()[:, None]
        parts[i] = torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)
    assert torch.allclose(queries.double(), parts[0], atol=1e-5)
    assert torch.allclose(planes[0, [7, 2]].double(), parts[1][[0, 2]], atol=1e-5)
    assert torch.equal(planes[1, [7, 2]].flatten(1).double(), parts[2][[0, 2]])
    others = [slot for slot in range(slots) if slot not in (7, 2)]
    assert planes[:, others].isnan().all(), "a slot that nobody named was written"
