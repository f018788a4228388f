"""The CUDA path's KV pool: seats and slots are taken, returned, grown and limited as the host counts them."""

import pytest
import torch

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.kv_pool import CHUNK, CudaKvPool, KvSequence
from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.errors import OutOfMemory
from tests.helpers import slot_moves

HEADS = HeadSizes(4, 2, 3)
LAYERS = 2


def make(slots: int = 8) -> CudaKvPool:
    return CudaKvPool(LAYERS, HEADS, torch.zeros(1), slots)


def fill(pool: CudaKvPool) -> torch.Tensor:
    """Give every number of the pool a value of its own; a copy of them."""
    pool.kept[:] = torch.arange(pool.kept.numel(), dtype=torch.float32).view(pool.kept.shape)
    return pool.kept.clone()


# -------------------------------------------------------------------------------- seats and slots
def test_a_new_pool_has_one_free_seat_of_zeros() -> None:
    pool = make()
    assert pool.kept.shape == (2 * LAYERS, 1, 8, HEADS.keys, HEADS.width)
    assert not pool.kept.any()
    assert (pool.sequences, pool.slots, pool.used, pool.version) == (1, 8, 0, 0)
    assert (pool.block, pool.blocks, pool.cached) == (8, None, 0)


def test_the_number_format_is_that_of_the_model() -> None:
    pool = CudaKvPool(1, HEADS, torch.zeros(1, dtype=torch.bfloat16), 4)
    assert pool.kept.dtype == torch.bfloat16
    pool.take()
    pool.take()
    assert pool.kept.dtype == torch.bfloat16


def test_seats_double_and_every_seat_is_given_once() -> None:
    pool = make()
    taken = [pool.take() for _ in range(5)]
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert pool.sequences == 8
    assert pool.used == 5
    assert sorted(pool.free) == [5, 6, 7]
    assert pool.version == 3  # 1 -> 2 -> 4 -> 8


def test_a_released_seat_is_taken_again_before_the_pool_grows() -> None:
    pool = make()
    one = pool.take()
    pool.take()
    age = pool.version
    pool.release(one)
    assert pool.used == 1
    assert pool.take() == one
    assert pool.version == age


def test_growing_keeps_what_seats_hold_and_adds_zeros() -> None:
    pool = make(4)
    pool.take()
    before = fill(pool)
    pool.take()
    pool.reserve(6)
    assert pool.slots == 8
    assert torch.equal(pool.kept[:, :1, :4], before)
    assert not pool.kept[:, 1:].any()
    assert not pool.kept[:, :, 4:].any()


def test_slots_at_least_double_and_fewer_change_nothing() -> None:
    pool = make(8)
    pool.reserve(8)
    assert (pool.slots, pool.version) == (8, 0)
    pool.reserve(9)
    assert (pool.slots, pool.version) == (16, 1)
    pool.reserve(100)
    assert (pool.slots, pool.version) == (100, 2)


def test_planes_of_a_layer_are_its_keys_and_values() -> None:
    pool = make()
    numbers = fill(pool)
    for layer in range(LAYERS):
        planes = pool.planes(layer)
        assert torch.equal(planes, numbers[2 * layer : 2 * layer + 2])
        assert planes.data_ptr() == pool.kept[2 * layer].data_ptr()  # a view, written by passes


# ------------------------------------------------------------------------------------------ limits
def test_without_a_limit_everything_fits() -> None:
    assert make().fits(1 << 40)


def test_a_limit_counts_seats_of_the_present_length() -> None:
    pool = make(8)
    pool.limit(35)
    assert pool.blocks == 4
    for count in range(4):
        assert pool.fits(8)
        pool.take()
        assert pool.used == count + 1
    assert not pool.fits(1)
    with pytest.raises(OutOfMemory, match=r"5 sequences of 8 tokens do not fit memory's 35; wait"):
        pool.take()
    assert pool.sequences == 4


def test_seats_grow_only_as_far_as_the_limit() -> None:
    pool = make(8)
    pool.limit(3 * 8)
    for _ in range(3):
        pool.take()
    assert pool.sequences == 3


def test_slots_grow_only_as_far_as_the_limit() -> None:
    pool = make(8)
    pool.limit(20)
    pool.take()
    pool.reserve(10)
    assert pool.slots == 16
    pool.reserve(17)
    assert pool.slots == 20
    with pytest.raises(OutOfMemory, match="1 sequences of 21"):
        pool.reserve(21)
    assert pool.slots == 20


def test_a_limit_below_what_is_there_takes_nothing_away() -> None:
    pool = make(8)
    pool.take()
    pool.take()
    pool.limit(8)
    assert pool.sequences == 2
    assert pool.blocks == 2
    pool.release(1)
    assert pool.fits(8)
    assert not pool.fits(9)


@pytest.mark.parametrize("most", [64, 100, 128, 192, 256])
@pytest.mark.parametrize("open_first", [0, 1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 16, 17, 40, 64, 65])
def test_what_fits_can_be_opened_and_what_does_not_is_refused(
    most: int, open_first: int, tokens: int
) -> None:
    pool = make(16)
    pool.limit(most)
    held = [KvSequence(pool, KvLayout(), 5) for _ in range(open_first)]
    if pool.fits(tokens):
        held.append(KvSequence(pool, KvLayout(), tokens))
        assert pool.sequences * pool.slots <= most
    else:
        used = pool.used
        with pytest.raises(OutOfMemory):
            KvSequence(pool, KvLayout(), tokens)
        assert pool.used == used


def test_a_text_in_a_seat_at_the_end_keeps_those_before_it() -> None:
    pool = make(16)
    pool.limit(128)
    several = [KvSequence(pool, KvLayout(), 5) for _ in range(3)]
    for slot in several[:2]:
        slot.release()
    assert several[2].index == 2
    assert not pool.fits(64)  # three seats would have to be so long, though two are in use
    with pytest.raises(OutOfMemory, match="3 sequences of 64 tokens"):
        KvSequence(pool, KvLayout(), 64)
    assert pool.fits(128 // 3)
    assert KvSequence(pool, KvLayout(), 128 // 3).index == 0


def test_seats_of_closed_texts_make_room_for_a_longer_one() -> None:
    pool = make(16)
    pool.limit(64)
    several = [KvSequence(pool, KvLayout(), 5) for _ in range(4)]
    assert not pool.fits(17)
    for slot in several[1:]:
        slot.release()
    assert several[0].index == 0
    before = fill(pool)
    assert pool.fits(32)
    longer = KvSequence(pool, KvLayout(), 32)
    assert pool.sequences * pool.slots <= 64
    assert pool.slots >= 32
    assert longer.index not in (several[0].index, *pool.free)
    assert torch.equal(pool.kept[:, 0, :16], before[:, 0])
    assert sorted([several[0].index, longer.index, *pool.free]) == list(range(pool.sequences))


# -------------------------------------------------------------------------------------- one session
def test_a_slot_knows_where_its_seat_begins_even_after_growth() -> None:
    pool = make(8)
    slots = [KvSequence(pool, KvLayout(), 3) for _ in range(3)]
    for slot in slots:
        assert slot.first == 8 * slot.index
    slots[0].reserve(30, 3)
    for slot in slots:
        assert slot.first == 30 * slot.index


def test_a_seat_comes_back_once_however_it_is_left() -> None:
    pool = make()
    slot = KvSequence(pool, KvLayout(), 3)
    slot.release()
    slot.release()
    assert pool.used == 0
    assert pool.free == [0]
    slot = KvSequence(pool, KvLayout(), 3)
    del slot
    assert pool.free == [0]


def test_a_copy_has_a_seat_of_its_own_with_the_first_slots() -> None:
    pool = make()
    slot = KvSequence(pool, KvLayout(), 6)
    fill(pool)
    copy = slot.copy(4)
    assert copy.index != slot.index
    assert torch.equal(pool.kept[:, copy.index, :4], pool.kept[:, slot.index, :4])
    assert not pool.kept[:, copy.index, 4:].any()
    assert pool.kept[:, slot.index, 4:].all()


@pytest.mark.parametrize("count", [1, 3, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_moved_slots_are_read_before_they_are_written(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot_moves.use(monkeypatch)
    size = 3 * count + 8
    pool = make(size)
    slots = [KvSequence(pool, KvLayout(), size) for _ in range(2)]
    before = fill(pool)
    start = 2
    sources = [start + 1 + 2 * each for each in range(count)]
    slots[1].move(sources, start)
    pool.run_moves()
    mine, other = slots[1].index, slots[0].index
    assert torch.equal(pool.kept[:, mine, start : start + count], before[:, mine, sources])
    assert torch.equal(pool.kept[:, mine, :start], before[:, mine, :start])
    assert torch.equal(pool.kept[:, other], before[:, other])
    assert torch.equal(pool.kept[:, mine, start + count :], before[:, mine, start + count :])


def test_moves_wait_for_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    slot_moves.use(monkeypatch)
    pool = make(16)
    slots = [KvSequence(pool, KvLayout(), 16) for _ in range(3)]
    before = fill(pool)
    for number, slot in enumerate(slots):
        slot.move([4 + number, 7], 3)
    assert torch.equal(pool.kept, before)
    dropped = slots[2].index
    slots[2].release()
    pool.run_moves()
    for number, slot in enumerate(slots[:2]):
        moved = pool.kept[:, slot.index]
        assert torch.equal(moved[:, 3:5], before[:, slot.index, [4 + number, 7]])
        assert torch.equal(moved[:, 5:], before[:, slot.index, 5:])
    assert torch.equal(pool.kept[:, dropped], before[:, dropped])


def test_a_second_move_of_a_sequence_runs_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    slot_moves.use(monkeypatch)
    pool = make(16)
    slot = KvSequence(pool, KvLayout(), 16)
    before = fill(pool)
    slot.move([5, 7], 3)
    slot.move([4], 2)  # what the first one wrote
    pool.run_moves()
    assert torch.equal(pool.kept[:, slot.index, 2:5], before[:, slot.index, [7, 5, 7]])


def test_gathering_counts_slots_from_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    slot_moves.use(monkeypatch)
    pool = make(16)
    slots = [KvSequence(pool, KvLayout(), 16) for _ in range(2)]
    before = fill(pool)
    slots[1].gather(torch.tensor([2, 5]), 6, 5)
    found = pool.kept[:, slots[1].index]
    assert torch.equal(found[:, 6:8], before[:, slots[1].index, [7, 10]])


def test_a_kept_path_moves_behind_the_nodes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    slot_moves.use(monkeypatch)
    pool = make(16)
    slots = [KvSequence(pool, KvLayout(), 16) for _ in range(2)]
    before = fill(pool)
    sequence = slots[1]
    path = torch.tensor([0, 1, 4, 6, 0, 0])
    # first slot, length and rows of the next pass, then: length when scored, nodes that stay, stop
    facts = torch.tensor([sequence.first, 9, 3, 5, 2, 4, 0, 0])
    pool.keep(path, facts)
    found = pool.kept[:, sequence.index]
    assert torch.equal(found[:, 7:9], before[:, sequence.index, [9, 11]])
    assert torch.equal(found[:, :7], before[:, sequence.index, :7])
    assert torch.equal(found[:, 9:], before[:, sequence.index, 9:])


# ------------------------------------------------------------------------- before the first request
def test_sequences_are_allocated_at_once_as_far_as_the_limit_allows() -> None:
    pool = make()
    pool.allocate(5)
    assert (pool.sequences, len(pool.free), pool.version) == (5, 5, 1)
    pool.allocate(3)  # there are more
    assert (pool.sequences, pool.version) == (5, 1)
    limited = make()
    limited.limit(3 * 8)
    limited.allocate(64)
    assert limited.sequences == limited.blocks == 3


def test_allocating_keeps_what_is_in_use() -> None:
    pool = make()
    taken = pool.take()
    before = fill(pool)
    pool.allocate(4)
    assert torch.equal(pool.kept[:, taken], before[:, taken])
    assert sorted(pool.free) == [1, 2, 3]


def test_without_a_device_the_free_memory_is_what_there_is() -> None:
    pool = make()
    pool.allocate(2)
    assert pool.free_tokens == 16
