"""The fixed order of sums of attention: chunks, groups of chunks, and programs that walk them."""

import itertools

import pytest

from sapwood.backends.torch.cuda.kernels.attention_tiles import (
    CHUNK,
    FINE,
    GROUPS,
    LEADS,
    HeadSizes,
    group_of,
    units_of,
)

END = GROUPS[-1][0] + 2 * GROUPS[-1][1]  # positions: two groups of the largest size


def test_sizes_of_groups_are_whole_chunks_and_change_where_a_group_ends() -> None:
    assert GROUPS[0] == (0, CHUNK)
    assert GROUPS[1][0] == FINE
    for (start, size), (stop, larger) in itertools.pairwise(GROUPS):
        assert size % CHUNK == 0
        assert larger % size == 0
        assert (stop - start) % size == 0


def test_every_position_has_a_group_and_groups_are_in_order() -> None:
    groups = [group_of(position) for position in range(END)]
    assert groups[0] == 0
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(groups))
    starts = [at for at in range(END) if at == 0 or groups[at] != groups[at - 1]]
    assert starts == [at for start, size, stop in spans() for at in range(start, stop, size)]


def spans() -> list[tuple[int, int, int]]:
    """First position, size of a group and last position of each size."""
    stops = [*(start for start, _ in GROUPS[1:]), END]
    return [(start, size, stop) for (start, size), stop in zip(GROUPS, stops, strict=True)]


@pytest.mark.parametrize("lead", LEADS)
def test_units_are_one_for_the_first_groups_and_one_for_each_other(lead: int) -> None:
    for positions in (0, 1, 63, 64, 65, 300, 1024, 1025, 4096, 5000, 20000):
        groups = group_of(max(positions, 1) - 1) + 1
        assert units_of(positions, lead) == max(1, 1 + groups - lead)


def test_a_unit_more_is_needed_when_a_group_begins() -> None:
    assert units_of(64, 1) == 1
    assert units_of(65, 1) == 2
    assert units_of(4 * 64, 4) == 1
    assert units_of(4 * 64 + 1, 4) == 2
    assert units_of(FINE + 1, 16) == units_of(FINE + 256, 16) == 2
    assert units_of(FINE + 257, 16) == 3


def test_one_projection_makes_queries_keys_and_values() -> None:
    assert HeadSizes(9, 3, 64).all == 15
