"""Keys and values of a head: seats are taken, returned and grown, and rows stay where they were written."""

import pytest
import torch

from sapwood.backends.torch.cuda.draft import head_kv_pool
from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights, describe
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvPool, HeadKvSequence
from sapwood.core.tree import CAPACITY
from tests.helpers import head_folders

SLOTS = 2 * CAPACITY


@pytest.fixture(scope="module")
def layer() -> EagleWeights:
    head = head_folders.make()
    return describe(head, torch.zeros(head.config.vocab, head.config.shape.width))


@pytest.fixture
def pool(layer: EagleWeights, monkeypatch: pytest.MonkeyPatch) -> HeadKvPool:
    monkeypatch.setattr(head_kv_pool, "SLOTS", SLOTS)
    return HeadKvPool(layer)


def rows(pool: HeadKvPool, count: int, value: float) -> torch.Tensor:
    return torch.full((1, pool.layer.kv_heads, count, pool.layer.head_width), value)


def test_a_new_pool_has_one_seat_of_zeros(pool: HeadKvPool, layer: EagleWeights) -> None:
    assert pool.keys.shape == pool.values.shape == (1, layer.kv_heads, SLOTS, layer.head_width)
    assert not pool.keys.any()
    assert pool.keys.data_ptr() != pool.values.data_ptr()
    assert (pool.free, pool.version) == ([0], 0)


def test_seats_double_and_each_is_given_once(pool: HeadKvPool) -> None:
    taken = [pool.take(1) for _ in range(5)]
    assert len(pool.keys) == len(pool.values) == 8
    assert sorted([*taken, *pool.free]) == list(range(8))
    assert pool.version == 3


def test_a_returned_seat_is_taken_again(pool: HeadKvPool) -> None:
    sequence = pool.take(1)
    pool.release(sequence)
    assert pool.take(1) == sequence
    assert pool.version == 0


def test_rows_grow_by_doubling_and_keep_what_they_hold(pool: HeadKvPool) -> None:
    pool.keys[:] = torch.arange(pool.keys.numel()).view(pool.keys.shape)
    before = pool.keys.clone()
    pool.make_room(SLOTS)
    assert pool.version == 0
    pool.make_room(SLOTS + 1)
    assert pool.keys.shape[2] == pool.values.shape[2] == 2 * SLOTS
    assert torch.equal(pool.keys[:, :, :SLOTS], before)
    assert not pool.keys[:, :, SLOTS:].any()
    assert pool.version == 1
    pool.make_room(9 * SLOTS)
    assert pool.keys.shape[2] == 9 * SLOTS


def test_new_seats_do_not_lengthen_the_others(pool: HeadKvPool) -> None:
    pool.take(1)
    pool.take(1)
    assert pool.keys.shape[2] == SLOTS


@pytest.mark.parametrize("fails", [1, 2])
def test_a_pool_that_cannot_grow_stays_as_it_was(
    pool: HeadKvPool, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    pool.take(1)
    keys, values = pool.keys, pool.values
    empty = pool._empty
    made: list[int] = []

    def scarce(sequences: int, slots: int) -> torch.Tensor:
        made.append(sequences)
        if len(made) == fails:
            raise torch.OutOfMemoryError("no memory")
        return empty(sequences, slots)

    monkeypatch.setattr(pool, "_empty", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        pool.take(1)
    assert pool.keys is keys
    assert pool.values is values
    assert pool.free == []
    assert pool.version == 0


# ------------------------------------------------------------------------------------ one request
def test_a_slot_has_room_for_its_text_and_a_tree(pool: HeadKvPool) -> None:
    slot = HeadKvSequence(pool, SLOTS)
    assert slot.text == 0
    assert pool.keys.shape[2] >= SLOTS + CAPACITY
    assert slot.outputs.shape == (CAPACITY, pool.layer.width)


@torch.inference_mode()
def test_rows_are_written_to_the_slots_own_seat(pool: HeadKvPool) -> None:
    slots = [HeadKvSequence(pool, 1) for _ in range(2)]
    slots[1].write(rows(pool, 3, 5.0), rows(pool, 3, 7.0), 4)
    assert (slots[1].keys[:, :, 4:7] == 5).all()
    assert (slots[1].values[:, :, 4:7] == 7).all()
    assert not slots[1].keys[:, :, :4].any()
    assert not slots[1].keys[:, :, 7:].any()
    assert not slots[0].keys.any()
    assert not slots[0].values.any()


@torch.inference_mode()
def test_writing_behind_the_end_makes_room(pool: HeadKvPool) -> None:
    slot = HeadKvSequence(pool, 1)
    slot.write(rows(pool, 2, 1.0), rows(pool, 2, 1.0), 0)
    slot.write(rows(pool, 2, 5.0), rows(pool, 2, 7.0), SLOTS - 1)
    assert (slot.keys[:, :, SLOTS - 1 : SLOTS + 1] == 5).all()
    assert (slot.keys[:, :, :2] == 1).all()
    assert pool.version == 1


def test_outputs_are_taken_by_row(pool: HeadKvPool) -> None:
    slot = HeadKvSequence(pool, 1)
    slot.outputs[:] = torch.arange(CAPACITY)[:, None].float()
    assert slot.take([3, 0, 3])[:, 0].tolist() == [3, 0, 3]


def test_a_seat_is_returned_once(pool: HeadKvPool) -> None:
    slot = HeadKvSequence(pool, 1)
    slot.close()
    slot.close()
    assert pool.free == [0]
    slot = HeadKvSequence(pool, 1)
    assert pool.free == []
    del slot
    assert pool.free == [0]
