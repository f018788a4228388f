"""How many blocks a write needs, counted before any is taken."""

import pytest

from sapwood.errors import OutOfMemory
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, reserve

SIZE = 4


def memory(blocks: int) -> BlockAllocator:
    found = BlockAllocator(SIZE)
    found.limit(blocks * SIZE)
    return found


@pytest.mark.parametrize(
    ("start", "stop", "blocks"), [(0, 1, 1), (0, 4, 1), (0, 5, 2), (3, 9, 3), (0, 12, 3)]
)
def test_a_new_text_needs_all_blocks_up_to_its_end(start: int, stop: int, blocks: int) -> None:
    assert BlockTable(memory(9)).needs(start, stop) == blocks


def test_shared_blocks_are_needed_once_more_and_own_ones_are_not() -> None:
    text = BlockTable(memory(9))
    text.reserve(0, 6)
    assert text.needs(2, 8) == 0
    assert text.needs(2, 9) == 1
    other, _ = text.fork(4)  # shares the first block
    assert text.needs(2, 6) == 1
    assert text.needs(4, 6) == 0
    assert other.needs(3, 13) == 1 + 3


def test_several_texts_are_refused_together_and_nothing_changes() -> None:
    blocks = memory(3)
    first, second = BlockTable(blocks), BlockTable(blocks)
    with pytest.raises(OutOfMemory, match="4 more blocks"):
        reserve([(first, 0, 8), (second, 0, 8)])
    assert (first.ids, second.ids, blocks.used) == ([], [], 0)
    assert reserve([(first, 0, 8), (second, 0, 4)]) == []
    assert blocks.used == 3
