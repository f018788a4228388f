"""Paged slots: places of a text follow its blocks, whole blocks are copied, and states lie beside keys."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sapwood.backends.torch.kv_pool import PAD, KvPool, PagedSlots, reserve_all
from sapwood.backends.torch.kv_slots import KvLayout, KvSlots
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.kv_cache.block_allocator import BLOCK, EXTENT


def layout() -> KvLayout:
    made = KvLayout()
    for layer in range(2):
        made.keys[layer] = made.place(torch.zeros(1, 2, 1, 3))
        made.values[layer] = made.place(torch.zeros(1, 2, 1, 4))
    return made


@pytest.fixture
def pool() -> KvPool:
    return KvPool(layout())


def opened(pool: KvPool, tokens: Sequence[int], tenant: str = "") -> PagedSlots:
    """A session that has read this text; the slot of a token holds the token."""
    slots = pool.start(tokens, tenant)
    slots.reserve(len(tokens), slots.found)
    write(slots, slots.found, tokens[slots.found :])
    slots.commit(tokens[slots.found :], len(tokens), {})
    return slots


def write(slots: PagedSlots, start: int, numbers: Sequence[int]) -> None:
    where = torch.from_numpy(slots.places(range(start, start + len(numbers))))
    rows = torch.tensor(list(numbers), dtype=torch.float32)[:, None]
    with torch.inference_mode():
        for buffer in slots.buffers:
            buffer[:, :, where] = rows


def held(slots: PagedSlots, length: int) -> list[int]:
    """What the slots of the first places hold, in every plane."""
    where = torch.from_numpy(slots.places(range(length)))
    found = slots.buffers[0][0, 0, where, 0]
    for buffer in slots.buffers:
        assert (buffer[:, :, where] == found[:, None]).all()
    return [int(number) for number in found]


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


# ------------------------------------------------------------------------------------------ places
def test_a_text_that_grew_in_one_piece_is_one_run(pool: KvPool) -> None:
    slots = opened(pool, text(3 * BLOCK + 5))
    runs = slots.runs(3 * BLOCK + 5)
    assert len(runs) == 1
    assert runs[0, 1] == 3 * BLOCK + 5
    first = int(runs[0, 0])
    assert slots.places(range(4)).tolist() == [first, first + 1, first + 2, first + 3]
    assert isinstance(slots.where(range(40)), slice)
    assert held(slots, 53) == text(53)


def test_runs_and_places_tell_the_same_slots(pool: KvPool) -> None:
    pool.memory.limit(3 * EXTENT * BLOCK)
    several = [opened(pool, text(BLOCK, 100 * n)) for n in range(3)]
    one, _, two = several
    write_more(one, 20 * BLOCK)
    write_more(two, 20 * BLOCK)
    for slots in (one, two):
        runs = slots.runs(20 * BLOCK - 3)
        assert len(runs) > 1
        listed = [slot for first, count in runs.tolist() for slot in range(first, first + count)]
        assert listed == slots.places(range(20 * BLOCK - 3)).tolist()
        assert len(set(listed)) == len(listed)
    together = [set(slots.places(range(BLOCK)).tolist()) for slots in several]
    assert not set.intersection(*together)


def write_more(slots: PagedSlots, length: int) -> None:
    slots.reserve(length, BLOCK)


def test_buffers_are_padded_so_that_planes_do_not_lie_a_power_of_two_apart(pool: KvPool) -> None:
    assert all(buffer.shape[2] == 0 for buffer in pool.buffers)
    slots = opened(pool, text(3))
    for buffer in slots.buffers:
        assert buffer.shape[2] == pool.memory.capacity * BLOCK + PAD


def test_growing_keeps_what_texts_hold(pool: KvPool) -> None:
    slots = opened(pool, text(20))
    before = pool.memory.capacity
    other = opened(pool, text(before * BLOCK, 1000))
    assert pool.memory.capacity > before
    assert held(slots, 20) == text(20)
    assert held(other, 50) == text(50, 1000)


def test_a_machine_without_memory_says_so(pool: KvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def scarce(shape: tuple[int, ...], **more: Any) -> torch.Tensor:
        if shape[2]:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return empty(shape, **more)

    monkeypatch.setattr(torch, "empty", scarce)
    with pytest.raises(SapwoodError, match=r"no memory for the keys and values of \d+ tokens"):
        opened(pool, text(20))


# ----------------------------------------------------------------------------------- forks and cuts
def test_a_fork_shares_full_blocks_and_copies_the_last(pool: KvPool) -> None:
    slots = opened(pool, text(2 * BLOCK + 3))
    fork = slots.copy(2 * BLOCK + 3)
    assert fork.table.ids[:2] == slots.table.ids[:2]
    assert fork.table.ids[2] != slots.table.ids[2]
    assert held(fork, 35) == text(35)
    fork.reserve(40, 35)
    write(fork, 35, [900, 901])
    slots.reserve(40, 35)
    write(slots, 35, [800, 801])
    assert held(fork, 37) == [*text(35), 900, 901]
    assert held(slots, 37) == [*text(35), 800, 801]


def test_a_shared_block_is_copied_before_it_is_written(pool: KvPool) -> None:
    slots = opened(pool, text(2 * BLOCK))
    fork = slots.copy(2 * BLOCK)
    fork.cut(BLOCK + 4)
    fork.reserve(BLOCK + 6, BLOCK + 4)
    write(fork, BLOCK + 4, [900, 901])
    assert held(fork, BLOCK + 6) == [*text(BLOCK + 4), 900, 901]
    assert held(slots, 2 * BLOCK) == text(2 * BLOCK)


def test_what_is_cut_and_released_is_free_again(pool: KvPool) -> None:
    slots = opened(pool, text(5 * BLOCK))
    assert pool.memory.used == 5
    slots.cut(2 * BLOCK + 1)
    assert pool.memory.used == 3
    assert slots.runs(2 * BLOCK + 1)[:, 1].sum() == 2 * BLOCK + 1
    slots.release()
    slots.release()
    assert pool.memory.used == 0


def test_moves_follow_blocks_that_lie_apart(pool: KvPool) -> None:
    pool.memory.limit(2 * EXTENT * BLOCK)
    one, two = opened(pool, text(BLOCK)), opened(pool, text(BLOCK, 100))
    one.reserve(18 * BLOCK, BLOCK)
    assert len(one.runs(18 * BLOCK)) > 1
    write(one, 0, text(18 * BLOCK))
    sources = [16 * BLOCK + 3, 16 * BLOCK + 5, 17 * BLOCK]
    one.move(sources, 16 * BLOCK - 1)
    wanted = text(18 * BLOCK)
    wanted[16 * BLOCK - 1 : 16 * BLOCK + 2] = sources
    assert held(one, 18 * BLOCK) == wanted
    assert held(two, BLOCK) == text(BLOCK, 100)


# ------------------------------------------------------------------------------------- known texts
def test_a_known_beginning_is_taken_up_with_its_states(pool: KvPool) -> None:
    pool.memory.limit(64 * BLOCK)
    tokens = text(2 * BLOCK + 4)
    first = pool.start(tokens, "")
    assert first.keeps
    first.reserve(len(tokens), 0)
    write(first, 0, tokens)
    states = {3: torch.arange(2.0 * len(tokens)).view(len(tokens), 2)}
    first.commit(tokens, len(tokens), states)
    first.release()
    again = pool.start([*tokens[: 2 * BLOCK], 999, 998], "")
    assert again.found == 2 * BLOCK
    assert held(again, 2 * BLOCK) == tokens[: 2 * BLOCK]
    known = again.states()
    assert torch.equal(known[3], states[3][: 2 * BLOCK])
    with torch.inference_mode():
        pool.states[3].zero_()
    assert known[3].any()  # memory of its own
    assert pool.start(tokens, "another tenant").found == 0


def test_states_grow_with_the_pool(pool: KvPool) -> None:
    pool.memory.limit(4 * BLOCK)
    slots = pool.start(text(BLOCK), "")
    slots.reserve(BLOCK, 0)
    slots.commit(text(BLOCK), BLOCK, {0: torch.ones(BLOCK, 2)})
    pool.memory.limit(9 * BLOCK)
    where = torch.from_numpy(slots.places(range(BLOCK)))
    assert (pool.states[0][where] == 1).all()
    assert len(pool.states[0]) >= 9 * BLOCK


def test_without_a_limit_no_states_are_kept(pool: KvPool) -> None:
    slots = pool.start(text(5), "")
    slots.reserve(5, 0)
    slots.commit(text(5), 5, {0: torch.ones(5, 2)})
    assert pool.states == {}
    assert not slots.keeps


# --------------------------------------------------------------------------------- several at once
def test_several_sessions_get_room_together_or_none_does(pool: KvPool) -> None:
    pool.memory.limit(4 * BLOCK)
    one, two = opened(pool, text(BLOCK)), opened(pool, text(BLOCK, 100))
    with pytest.raises(OutOfMemory, match="3 more blocks of 16 tokens do not fit: 2 of 4"):
        reserve_all([(one, BLOCK, 2 * BLOCK), (two, BLOCK, 3 * BLOCK)])
    assert (len(one.table.ids), len(two.table.ids)) == (1, 1)
    reserve_all([(one, BLOCK, 2 * BLOCK), (two, BLOCK, 2 * BLOCK)])
    assert (len(one.table.ids), len(two.table.ids)) == (2, 2)


def test_sessions_with_memory_of_their_own_are_reserved_one_by_one(pool: KvPool) -> None:
    alone = KvSlots(layout(), 3)
    paged = opened(pool, text(3))
    size = alone.size
    reserve_all([(alone, 3, size + 1), (paged, 3, BLOCK + 1)])
    assert alone.size > size
    assert len(paged.table.ids) == 2


def test_waiting_for_a_pass_is_the_pools(pool: KvPool) -> None:
    one, two = opened(pool, text(3)), opened(pool, text(3, 100))
    waited: list[int] = []
    one.settle = lambda: waited.append(1)
    two.settle()
    assert waited == [1]
    assert pool.settle is one.settle
