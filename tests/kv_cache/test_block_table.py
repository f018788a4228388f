"""Blocks of one text: what must be had before a write, what is shared, named, cut and given back."""

import pytest

from sapwood.errors import OutOfMemory
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, name_of, names_of, reserve, seed

SIZE = 4


@pytest.fixture
def blocks() -> BlockAllocator:
    """Without a limit: nothing is known of closed texts."""
    return BlockAllocator(SIZE)


@pytest.fixture
def keeping() -> BlockAllocator:
    """Room for ten blocks, of which those of closed texts stay known."""
    made = BlockAllocator(SIZE)
    made.limit(10 * SIZE)
    return made


def written(blocks: BlockAllocator, tokens: list[int], tenant: str = "") -> BlockTable:
    table = BlockTable(blocks, tenant)
    found = table.find(tokens)
    table.reserve(found, len(tokens))
    table.commit(tokens[found:])
    return table


# ----------------------------------------------------------------------------------------- reserving
def test_blocks_are_taken_as_they_are_needed(blocks: BlockAllocator) -> None:
    table = BlockTable(blocks)
    assert table.needs(0, 1) == 1
    assert table.needs(0, SIZE + 1) == 2
    assert table.reserve(0, SIZE + 1) == []
    assert len(table.ids) == blocks.used == 2
    assert table.needs(SIZE + 1, 2 * SIZE) == 0
    assert table.needs(SIZE + 1, 2 * SIZE + 1) == 1


def test_shared_blocks_are_copied_before_they_are_written(blocks: BlockAllocator) -> None:
    table = BlockTable(blocks)
    table.reserve(0, 2 * SIZE)
    other, copies = table.fork(2 * SIZE)
    assert copies == []
    assert other.ids == table.ids
    assert other.ids is not table.ids
    assert blocks.used == 2
    assert table.needs(SIZE, SIZE + 1) == 1
    old = table.ids[1]
    [(source, target)] = table.reserve(SIZE, SIZE + 1)
    assert source == old
    assert target == table.ids[1] != other.ids[1]
    assert table.ids[0] == other.ids[0]
    assert other.needs(SIZE, SIZE + 1) == 0  # it holds that one alone now


def test_a_fork_within_a_block_has_a_copy_of_it(blocks: BlockAllocator) -> None:
    table = BlockTable(blocks)
    table.reserve(0, 2 * SIZE)
    other, copies = table.fork(SIZE + 1)
    assert copies == [(table.ids[1], other.ids[1])]
    assert other.ids[0] == table.ids[0]
    assert blocks.used == 3


def test_what_does_not_fit_is_refused_and_changes_nothing(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(6 * SIZE)))
    before = list(table.ids)
    with pytest.raises(OutOfMemory, match="5 more blocks of 4 tokens do not fit: 6 of 10"):
        table.reserve(6 * SIZE, 11 * SIZE)
    assert table.ids == before
    assert keeping.used == 6


def test_several_texts_are_reserved_together_or_not_at_all(keeping: BlockAllocator) -> None:
    one, two = BlockTable(keeping), BlockTable(keeping)
    with pytest.raises(OutOfMemory):
        reserve([(one, 0, 6 * SIZE), (two, 0, 5 * SIZE)])
    assert (one.ids, two.ids, keeping.used) == ([], [], 0)
    assert reserve([(one, 0, 6 * SIZE), (two, 0, 4 * SIZE)]) == []
    assert (len(one.ids), len(two.ids)) == (6, 4)
    assert reserve([]) == []


# ------------------------------------------------------------------------------------------- names
def test_a_name_depends_on_all_tokens_before_it_and_on_the_tenant() -> None:
    tokens = list(range(3 * SIZE))
    names = names_of(tokens, SIZE, "a")
    assert len(names) == 3
    assert names[0] == name_of(seed("a"), tokens[:SIZE])
    assert names[1] == name_of(names[0], tokens[SIZE : 2 * SIZE])
    assert names_of(tokens[: 3 * SIZE - 1], SIZE, "a") == names[:2]
    assert names_of([99, *tokens[1:]], SIZE, "a")[1] != names[1]
    assert names_of(tokens, SIZE, "b")[0] != names[0]
    assert names_of([], SIZE, "a") == []


def test_full_blocks_of_a_closed_text_are_found_again(keeping: BlockAllocator) -> None:
    tokens = list(range(2 * SIZE + 3))
    table = written(keeping, tokens)
    ids = list(table.ids)
    table.close()
    assert (keeping.used, keeping.cached) == (0, 2)
    again = BlockTable(keeping)
    assert again.find([*tokens[: 2 * SIZE], 77]) == 2 * SIZE
    assert again.ids == ids[:2]
    assert again.tokens == tokens[: 2 * SIZE]
    assert (keeping.used, keeping.cached) == (2, 0)
    other = BlockTable(keeping)
    assert other.find([*tokens[:SIZE], *[99] * SIZE]) == SIZE
    assert BlockTable(keeping, "tenant").find(tokens) == 0


def test_without_a_limit_nothing_is_found(blocks: BlockAllocator) -> None:
    written(blocks, list(range(2 * SIZE))).close()
    table = BlockTable(blocks)
    assert table.find(list(range(2 * SIZE))) == 0
    assert table.tokens is None
    table.commit([1, 2, 3])  # nothing is noted
    assert table.tokens is None


def test_a_block_is_named_when_it_is_full(keeping: BlockAllocator) -> None:
    table = BlockTable(keeping)
    table.reserve(0, 2 * SIZE)
    table.commit([1, 2, 3])
    assert not keeping.fixed(table.ids[0])
    table.commit([4])
    assert keeping.fixed(table.ids[0])  # known, and copied before it is written
    assert not keeping.fixed(table.ids[1])


def test_texts_that_grow_alike_keep_blocks_of_their_own(keeping: BlockAllocator) -> None:
    tokens = list(range(SIZE))
    one = BlockTable(keeping)
    two = BlockTable(keeping)
    for table in (one, two):
        table.reserve(0, SIZE)
        table.commit(tokens)
    assert one.ids != two.ids
    one.close()
    two.close()
    assert keeping.cached == 1  # only the first was remembered


def test_what_was_forgotten_is_not_named_again(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(SIZE)))
    keeping.forget()
    table.reserve(SIZE, 2 * SIZE)
    table.commit(list(range(SIZE, 2 * SIZE)))
    assert not any(keeping.fixed(block) for block in table.ids)
    table.close()
    assert keeping.cached == 0


# ---------------------------------------------------------------------------------------------- ends
def test_a_cut_gives_back_whole_blocks_and_forgets_tokens(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(3 * SIZE)))
    ids = list(table.ids)
    table.truncate(SIZE + 1)
    assert table.ids == ids[:2]
    assert table.tokens == list(range(SIZE + 1))
    assert (keeping.used, keeping.cached) == (2, 1)
    [(old, new)] = table.reserve(SIZE + 1, SIZE + 2)
    assert old == ids[1]
    assert new not in ids[:2]
    table.commit([50, 51, 52])
    other = BlockTable(keeping)
    assert other.find([*range(SIZE + 1), 50, 51, 52]) == 2 * SIZE


def test_of_what_a_cut_gives_back_the_end_is_forgotten_first(keeping: BlockAllocator) -> None:
    tokens = list(range(6 * SIZE))
    table = written(keeping, tokens)
    table.truncate(SIZE)  # holds one block, five are known
    BlockTable(keeping).reserve(0, 6 * SIZE)  # two more than are free
    assert BlockTable(keeping).find(tokens) == 4 * SIZE


def test_a_cut_text_goes_on_under_new_names(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(2 * SIZE)))
    table.truncate(SIZE)
    table.reserve(SIZE, 2 * SIZE)
    table.commit([90, 91, 92, 93])
    for tokens, known in (([*range(SIZE), 90, 91, 92, 93], 2), (list(range(2 * SIZE)), 2)):
        other = BlockTable(keeping)
        assert other.find(tokens) == known * SIZE
        other.close()


def test_a_text_that_is_gone_gives_its_blocks_back(blocks: BlockAllocator) -> None:
    table = BlockTable(blocks)
    table.reserve(0, 3 * SIZE)
    assert blocks.used == 3
    del table
    assert blocks.used == 0


def test_closing_twice_gives_back_once(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(SIZE)))
    other, _ = table.fork(SIZE)
    table.close()
    table.close()
    assert table.ids == []
    assert keeping.used == 1
    other.close()
    assert keeping.used == 0


def test_a_fork_knows_its_text_and_its_era(keeping: BlockAllocator) -> None:
    table = written(keeping, list(range(SIZE + 2)))
    other, _ = table.fork(SIZE + 1)
    assert other.tokens == list(range(SIZE + 1))
    other.commit([60, 61, 62])
    third = BlockTable(keeping)
    assert third.find([*range(SIZE + 1), 60, 61, 62]) == 2 * SIZE
    keeping.forget()
    late, _ = table.fork(SIZE + 1)
    late.commit([70, 71, 72])
    assert BlockTable(keeping).find([*range(SIZE + 1), 70, 71, 72]) == 0
