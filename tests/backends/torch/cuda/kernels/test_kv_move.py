"""The kernels that move KV slots against plain torch operations."""

import pytest
import torch

from tests.helpers import slot_moves
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.kernels import kv_move


def numbers(*shape: int) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return torch.arange(count, dtype=torch.float32, device=DEVICE).view(shape)


@pytest.mark.parametrize(
    ("sources", "start"), [([3], 2), ([2, 3, 4], 2), ([3, 5, 6, 9], 2), ([0, 1], 0)]
)
@pytest.mark.parametrize("width", [3, 40])
def test_slots_of_all_planes_are_moved(sources: list[int], start: int, width: int) -> None:
    found = numbers(4, 2, 10, 2, width)
    wanted = found.clone()
    rows = torch.tensor(sources, device=DEVICE)
    kv_move.move(found, rows, 10, 10 + start, 8)
    slot_moves.move(wanted, rows, 10, 10 + start, 8)
    assert torch.equal(found, wanted)
    assert torch.equal(found[:, 0], numbers(4, 2, 10, 2, width)[:, 0])


@pytest.mark.parametrize(("stay", "stop"), [(0, 3), (1, 4), (2, 4), (4, 4), (0, 0)])
def test_a_path_is_kept_as_the_facts_say(stay: int, stop: int) -> None:
    found = numbers(2, 2, 16, 1, 5)
    wanted = found.clone()
    path = torch.tensor([0, 1, 4, 6, 0, 0], device=DEVICE)
    facts = torch.tensor([16, 0, 0, 5, stay, stop, 0, 0], device=DEVICE)
    kv_move.keep(found, path, facts, 8)
    slot_moves.keep(wanted, path, facts, 8)
    assert torch.equal(found, wanted)


def test_moves_of_several_sequences_run_in_one_launch() -> None:
    found = numbers(4, 3, 10, 2, 40)
    wanted = found.clone()
    moves = [(2, [3, 5, 6]), (21, [22]), (14, [15, 16])]  # first target, sources
    table = torch.zeros(len(moves), 2 + 8, dtype=torch.int64, device=DEVICE)
    for line, (start, sources) in zip(table, moves, strict=True):
        line[: 2 + len(sources)] = torch.tensor([start, len(sources), *sources])
    kv_move.move_many(found, table, 8)
    slot_moves.move_many(wanted, table, 8)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, numbers(4, 3, 10, 2, 40))
