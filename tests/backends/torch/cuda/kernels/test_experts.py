"""Mixtures of experts: which experts rows get, how they are grouped, and their outputs."""

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.kernels import experts
from sapwood.backends.torch.cuda.kernels.expert_buffers import ExpertBuffers, group_count
from sapwood.backends.torch.cuda.kernels.experts import add_experts
from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers, NormScale, PrenormRows

COUNT, CHOSEN, INNER, WIDTH = 5, 2, 24, 40
EPS = 1e-3


def room(rows: int) -> ExpertBuffers:
    like = torch.zeros(1, device=DEVICE)
    return ExpertBuffers.make(like, rows, COUNT, CHOSEN, INNER, WIDTH).first(rows)


def stream(x: torch.Tensor) -> PrenormRows:
    norm = torch.linspace(0.3, 1.0, WIDTH, device=DEVICE)
    return PrenormRows(x, NormScale.of(norm, EPS), NormBuffers.make(x, len(x), WIDTH))


@pytest.mark.parametrize("normalised", [True, False])
def test_rows_get_the_experts_with_the_largest_logits(normalised: bool) -> None:
    buffers = room(4)
    buffers.logits[:] = torch.tensor([[0, 3, 1, 3, -1]] * 2 + [[2, 0, 0, 0, 5]] * 2)
    experts.route(buffers, torch.tensor([0, 9, -1, 4], device=DEVICE), normalised)
    # of equals the lowest; the third row is read by nothing
    assert buffers.picks.tolist() == [[1, 3], [1, 3], [-1, -1], [4, 0]]
    wanted = buffers.logits.softmax(1).topk(CHOSEN).values
    if normalised:
        wanted = wanted / wanted.sum(1, keepdim=True)
    assert torch.allclose(buffers.shares, wanted)


def test_choices_of_one_expert_are_side_by_side_in_groups() -> None:
    torch.manual_seed(0)
    rows, tile = 70, 16
    buffers = room(rows)
    buffers.picks[:] = torch.rand(rows, COUNT).topk(CHOSEN).indices
    buffers.picks[rows // 2] = -1
    most = experts.group(buffers, tile)
    owners, held = buffers.groups[: 2 * most].view(2, most).tolist()
    found: dict[int, list[int]] = {}
    for group, (owner, count) in enumerate(zip(owners, held, strict=True)):
        assert 0 <= count <= tile
        members = buffers.members[group * tile : group * tile + count].tolist()
        found.setdefault(owner, []).extend(members)
    flat = buffers.picks.flatten()
    for expert in range(COUNT):
        assert found[expert] == (flat == expert).nonzero().flatten().tolist()


@pytest.mark.parametrize(("choices", "count", "tile"), [(8, 64, 16), (1024, 64, 16), (300, 8, 64)])
def test_there_are_groups_enough_for_any_routing(choices: int, count: int, tile: int) -> None:
    spread = [choices // count] * count  # a rest for each expert
    spread[0] += choices - sum(spread)
    uneven = [1] * min(count, choices)
    uneven[0] += choices - sum(uneven)
    for each in (spread, uneven, [choices]):
        assert sum(-(-one // tile) for one in each) <= group_count(choices, count, tile)


@pytest.mark.parametrize("rows", [1, 37])
def test_outputs_of_experts_are_added_by_their_shares(rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(37, WIDTH, device=DEVICE)[:rows]
    router = torch.randn(COUNT, WIDTH, device=DEVICE)
    gate_up = torch.randn(COUNT, 2 * INNER, WIDTH, device=DEVICE) / 8
    down = torch.randn(COUNT, WIDTH, INNER, device=DEVICE)
    given, out = stream(x), stream(torch.full_like(x, torch.nan))
    slots = torch.arange(rows, device=DEVICE)
    add_experts(
        given, router, gate_up, down, out, room(rows), slots, normalised=True, activation="silu"
    )
    wide = x.double()
    normed = wide * (wide.square().mean(1, keepdim=True) + EPS).rsqrt()
    normed = normed * (given.scale.norm * given.scale.lift).double()
    shares, picks = (normed @ router.double().T).softmax(1).topk(CHOSEN)
    shares = shares / shares.sum(1, keepdim=True)
    gates, ups = torch.einsum("rk,enk->ren", normed, gate_up.double()).chunk(2, -1)
    every = torch.einsum("ren,ekn->rek", torch.nn.functional.silu(gates) * ups, down.double())
    wanted = wide + (every[torch.arange(rows)[:, None], picks] * shares[..., None]).sum(1)
    assert torch.allclose(out.x.double(), wanted, atol=1e-4)
    assert out.parts == 1
