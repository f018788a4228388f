"""Blocks are counted exactly: none is lost, none is given twice, what is shared or known does not change."""

import gc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.kv_cache.block_allocator import EXTENT, BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, names_of, reserve

# tokens of a block, blocks
SIZE = 4
MOST = 9
TENANTS = st.sampled_from(["", "one", "two"])
TOKENS = st.integers(0, 1)  # few, so that texts begin alike


class Contents:
    """What lies in blocks, place by place: the memory that the numbers are about."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], object] = {}

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for old, new in copies:
            for place in range(SIZE):
                self.places[new, place] = self.places.get((old, place))

    def write(self, table: BlockTable, start: int, tokens: list[int]) -> None:
        for place, token in enumerate(tokens, start):
            self.places[table.ids[place // SIZE], place % SIZE] = token

    def read(self, table: BlockTable, length: int) -> list[object]:
        return [
            self.places.get((table.ids[place // SIZE], place % SIZE)) for place in range(length)
        ]


class Text:
    """A table and the text it should hold."""

    def __init__(self, table: BlockTable, tokens: list[int]) -> None:
        self.table = table
        self.tokens = tokens

    @property
    def length(self) -> int:
        return len(self.tokens)


class Life(RuleBasedStateMachine):
    """Texts come, grow, fork, go back and leave, under a limit."""

    texts = Bundle("texts")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(SIZE, extent=3)
        self.contents = Contents()
        self.living = list[Text]()
        self.blocks.limit(MOST * SIZE)

    @rule(target=texts, tokens=st.lists(TOKENS, max_size=18), tenant=TENANTS)
    def start(self, tokens: list[int], tenant: str) -> Text:
        table = BlockTable(self.blocks, tenant)
        found = table.find(tokens)
        assert found % SIZE == 0
        assert found <= len(tokens)
        assert self.contents.read(table, found) == tokens[:found], (
            "what is taken up must be what was asked for"
        )
        text = Text(table, tokens[:found])
        self.living.append(text)
        return text

    @rule(text=texts, tokens=st.lists(TOKENS, min_size=1, max_size=14), kept=st.integers(0, 14))
    def write(self, text: Text, tokens: list[int], kept: int) -> None:
        before = [*text.table.ids], self.blocks.used, self.blocks.cached
        try:
            copies = text.table.reserve(text.length, text.length + len(tokens))
        except OutOfMemory:
            assert ([*text.table.ids], self.blocks.used, self.blocks.cached) == before
            assert not self.blocks.fits(
                SIZE * text.table.needs(text.length, text.length + len(tokens))
            )
            return
        self.contents.copy(copies)
        self.contents.write(text.table, text.length, tokens)
        text.tokens += tokens[:kept]
        text.table.commit(tokens[:kept])
        text.table.truncate(text.length)

    @rule(one=texts, two=texts, count=st.integers(1, 20))
    def write_both(self, one: Text, two: Text, count: int) -> None:
        if one is two:
            return
        before = [*one.table.ids], [*two.table.ids], self.blocks.used, self.blocks.cached
        wanted = [(text.table, text.length, text.length + count) for text in (one, two)]
        try:
            self.contents.copy(reserve(wanted))
        except OutOfMemory:
            assert (
                [*one.table.ids],
                [*two.table.ids],
                self.blocks.used,
                self.blocks.cached,
            ) == before
            return
        for text in (one, two):
            self.contents.write(text.table, text.length, [7] * count)
            text.table.truncate(text.length)

    @rule(target=texts, text=texts)
    def fork(self, text: Text) -> object:
        before = self.blocks.used
        try:
            table, copies = text.table.fork(text.length)
        except OutOfMemory:
            assert self.blocks.used == before
            return multiple()
        assert self.blocks.used - before == len(copies) == (text.length % SIZE > 0), (
            "only a part of a block is copied"
        )
        self.contents.copy(copies)
        self.living.append(Text(table, [*text.tokens]))
        return self.living[-1]

    @rule(text=texts, share=st.floats(0, 1))
    def rewind(self, text: Text, share: float) -> None:
        del text.tokens[int(share * text.length) :]
        text.table.truncate(text.length)

    @rule(text=consumes(texts))
    def close(self, text: Text) -> None:
        text.table.close()
        text.table.close()  # once more does nothing
        self.living.remove(text)

    @rule()
    def forget(self) -> None:
        self.blocks.forget()
        assert self.blocks.cached == 0

    @invariant()
    def texts_are_as_they_were_written(self) -> None:
        for text in self.living:
            assert self.contents.read(text.table, text.length) == text.tokens

    @invariant()
    def nothing_is_lost(self) -> None:
        held = {block for text in self.living for block in text.table.ids}
        assert self.blocks.used == len(held)
        assert self.blocks.used + self.blocks.cached <= MOST
        for text in self.living:
            assert len(text.table.ids) == -(-text.length // SIZE)
            assert len(set(text.table.ids)) == len(text.table.ids)

    def teardown(self) -> None:
        for text in self.living:
            text.table.close()
        assert self.blocks.used == 0
        fresh = BlockTable(self.blocks)
        fresh.reserve(0, MOST * SIZE)  # all of it can be had again
        assert sorted(fresh.ids) == list(range(MOST))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(TOKENS, max_size=40), st.lists(TOKENS, max_size=40))
@settings(deadline=None)
def test_names_are_shared_by_equal_beginnings_alone(one: list[int], two: list[int]) -> None:
    alike = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    names = names_of(one, SIZE, "a"), names_of(two, SIZE, "a")
    assert len(names[0]) == len(one) // SIZE
    shared = [a == b for a, b in zip(*names, strict=False)]
    assert sum(shared) == alike // SIZE
    assert all(shared[: alike // SIZE])
    assert not set(names_of(one, SIZE, "b")) & set(names[0])


def test_a_text_grows_where_it_began() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(8 * EXTENT * SIZE)
    tables = [BlockTable(blocks) for _ in range(4)]
    for end in range(1, 2 * EXTENT * SIZE + 1):
        for table in tables:
            table.reserve(end - 1, end)
    runs = [sum(b != a + 1 for a, b in pairwise(table.ids)) for table in tables]
    assert runs == [0] * 4


def known(blocks: BlockAllocator, token: int, count: int) -> list[int]:
    """A text of so many full blocks that was written and closed."""
    text = [token] * count * SIZE
    table = BlockTable(blocks)
    table.reserve(0, len(text))
    table.commit(text)
    table.close()
    return text


def test_the_bay_that_is_unused_longest_goes_first() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(2 * EXTENT * SIZE)
    one, two = (known(blocks, token, EXTENT) for token in (1, 2))
    assert (blocks.used, blocks.cached) == (0, 2 * EXTENT)
    table = BlockTable(blocks)
    assert table.find(one) == len(one)
    table.close()  # now the other one is unused longest
    writer = BlockTable(blocks)
    writer.reserve(0, 2 * SIZE)
    assert (blocks.used, blocks.cached) == (2, EXTENT)
    assert [BlockTable(blocks).find(text) for text in (one, two)] == [len(one), 0]


def test_of_a_text_that_is_held_in_part_the_end_goes_first() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(EXTENT * SIZE)
    text = known(blocks, 1, EXTENT)
    holder = BlockTable(blocks)
    other = BlockTable(blocks)
    assert holder.find(text[:SIZE]) == SIZE
    other.reserve(0, 3 * SIZE)
    assert (blocks.used, blocks.cached) == (4, EXTENT - 4)
    assert BlockTable(blocks).find(text) == (EXTENT - 3) * SIZE


def test_texts_without_a_bay_of_their_own_fill_the_gaps() -> None:
    blocks = BlockAllocator(SIZE)
    blocks.limit(2 * EXTENT * SIZE)
    tables = [BlockTable(blocks) for _ in range(2 * EXTENT)]
    for table in tables:
        table.reserve(0, 1)
    assert blocks.used == 2 * EXTENT
    assert sorted(block for table in tables for block in table.ids) == list(range(2 * EXTENT))


def test_without_a_limit_nothing_is_kept_and_room_follows_need() -> None:
    sizes: list[int] = []
    blocks = BlockAllocator(SIZE, follow=sizes.append)
    assert blocks.blocks is None
    assert blocks.fits(1 << 40)
    table = BlockTable(blocks)
    table.reserve(0, 500)
    table.commit([1] * 500)
    assert blocks.used == 125 <= sizes[-1]
    del table
    gc.collect()
    assert (blocks.used, blocks.cached, blocks.capacity, sizes[-1]) == (0, 0, 0, 0)
    assert BlockTable(blocks).find([1] * 500) == 0


def test_misuse_is_refused() -> None:
    blocks = BlockAllocator(SIZE)
    with pytest.raises(SapwoodError, match="no block"):
        blocks.limit(SIZE - 1)
    [block] = blocks.take(1)
    other = blocks.take(1)
    blocks.drop([block])
    with pytest.raises(ValueError, match="not held"):
        blocks.drop([block])
    blocks.limit(SIZE)
    assert not blocks.fits(1)
    with pytest.raises(OutOfMemory, match="1 of 1 are in use"):
        blocks.take(1)
    blocks.drop(other)
    assert blocks.fits(SIZE)


def test_no_room_on_the_machine_changes_nothing() -> None:
    def refuse(count: int) -> None:
        raise SapwoodError("no memory")

    blocks = BlockAllocator(SIZE, refuse)
    with pytest.raises(SapwoodError, match="no memory"):
        blocks.limit(100)
    assert (blocks.blocks, blocks.capacity, blocks.used) == (None, 0, 0)
    with pytest.raises(SapwoodError, match="no memory"):
        blocks.take(3)
    assert (blocks.capacity, blocks.used) == (0, 0)


def test_what_was_begun_before_all_was_forgotten_is_not_known() -> None:
    blocks = BlockAllocator(SIZE)
    text = np.arange(8).tolist()
    blocks.limit(100)
    table = BlockTable(blocks)
    table.reserve(0, 8)
    blocks.forget()
    table.commit(text)
    table.close()
    assert (blocks.used, blocks.cached) == (0, 0)


def test_blocks_may_be_dropped_while_others_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the garbage collector does with the blocks of a lost text, at any moment."""
    allocator = BlockAllocator()
    lost = allocator.take(3)
    find = BlockAllocator._next

    def collected(self: BlockAllocator, after: int, wanted: int) -> int:
        found = find(self, after, wanted)
        while lost:
            self.drop([lost.pop()])
        return found

    monkeypatch.setattr(BlockAllocator, "_next", collected)
    held = allocator.take(2)
    assert len(held) == 2
    assert allocator.used == 2
    allocator.drop(held)
    assert (allocator.used, allocator.capacity) == (0, 0)
