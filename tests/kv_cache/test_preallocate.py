"""Blocks for a text that is to come are made side by side, before it is read."""

import pytest

from sapwood.kv_cache.block_allocator import EXTENT, BlockAllocator
from sapwood.kv_cache.block_table import BlockTable

SIZE = 4
BAY_TOKENS = SIZE * EXTENT


@pytest.mark.parametrize(
    ("tokens", "bays"), [(1, 2), (BAY_TOKENS, 2), (BAY_TOKENS + 1, 3), (3 * BAY_TOKENS, 4)]
)
def test_there_is_room_for_the_text_and_a_bay_more(tokens: int, bays: int) -> None:
    told: list[int] = []
    blocks = BlockAllocator(SIZE, told.append)
    blocks.preallocate(tokens)
    assert (blocks.capacity, told) == (bays * EXTENT, [bays * EXTENT])
    blocks.preallocate(tokens)  # the gap is still there
    assert told == [bays * EXTENT]


def test_a_gap_that_is_too_narrow_is_not_enough() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.preallocate(BAY_TOKENS)
    blocks.take(1)  # one of two bays
    blocks.preallocate(BAY_TOKENS)
    assert blocks.capacity == 4 * EXTENT
    text = BlockTable(blocks)
    text.find([0] * 2 * BAY_TOKENS)
    text.reserve(0, 2 * BAY_TOKENS)
    assert text.ids == list(range(text.ids[0], text.ids[0] + 2 * EXTENT))


def test_where_there_is_a_limit_nothing_is_foreseen() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(3 * SIZE)
    blocks.preallocate(9 * BAY_TOKENS)
    assert blocks.capacity == 3
