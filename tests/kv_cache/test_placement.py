"""Where blocks are given: behind the last one, else where most room is; and a clean start when all are back."""

from sapwood.kv_cache.block_allocator import EXTENT, BlockAllocator

SIZE = 4


def test_a_new_text_begins_in_the_widest_gap_and_not_in_the_first() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(8 * EXTENT * SIZE)
    first = blocks.take(EXTENT)
    second = blocks.take(1, first[-1])
    assert second == [EXTENT]
    blocks.drop(first)  # bay 0 is free again, bay 1 is not, bays 2 to 7 are the widest gap
    [block] = blocks.take(1)
    assert block >= 2 * EXTENT
    assert block % EXTENT == 0


def test_a_text_goes_on_behind_its_last_block_within_a_bay_that_is_its_own() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(4 * EXTENT * SIZE)
    [first] = blocks.take(1)
    assert blocks.take(2, first) == [first + 1, first + 2]


def test_when_all_blocks_are_back_the_count_begins_anew() -> None:
    told: list[int] = []
    blocks = BlockAllocator(SIZE, told.append)
    for _ in range(3):
        taken = blocks.take(1)
        assert taken == [0]
        assert blocks.used == 1
        blocks.drop(taken)
        assert (blocks.used, blocks.capacity) == (0, 0)
    assert told == [EXTENT, 0] * 3


def test_after_a_clean_start_the_first_of_equal_holes_is_filled() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.drop(blocks.take(1))
    taken = blocks.take(EXTENT)
    assert taken == list(range(EXTENT))
    blocks.drop([taken[3], taken[-1]])
    assert blocks.take(2) == [taken[3], taken[-1]]
