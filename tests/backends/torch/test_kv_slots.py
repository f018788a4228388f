"""Slots of one session: layouts, growth, moves and copies, against lists of numbers."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.kv_slots import SPARE, KvLayout, KvPlane, KvSlots

CPU = torch.device("cpu")


def layout(*shapes: tuple[int, int], dtype: torch.dtype = torch.float32) -> KvLayout:
    """A layout of one plane for each (heads, width)."""
    found = KvLayout()
    for layer, (heads, width) in enumerate(shapes):
        found.keys[layer] = found.place(torch.zeros(1, heads, 3, width, dtype=dtype))
    return found


def filled(slots: KvSlots) -> KvSlots:
    """Slot i holds the number i in every plane."""
    for buffer in slots.buffers:
        numbers = torch.arange(buffer.shape[2], dtype=torch.float32).to(buffer.dtype)
        buffer[:] = numbers[:, None]
    return slots


def numbers(slots: KvSlots, count: int) -> list[int]:
    """What the first slots hold, the same in every plane."""
    found = [buffer[0, 0, :count, 0].tolist() for buffer in slots.buffers]
    for buffer, row in zip(slots.buffers, found, strict=True):
        assert (buffer[:, :, :count] == torch.tensor(row)[:, None].to(buffer.dtype)).all()
    assert all(row == found[0] for row in found)
    return [int(number) for number in found[0]]


# ----------------------------------------------------------------------------------------- layouts
def test_planes_of_one_shape_share_a_buffer() -> None:
    made = KvLayout()
    places = [made.place(torch.zeros(1, heads, 5, width)) for heads, width in
              ((2, 4), (2, 4), (2, 8), (2, 4), (1, 4))]  # fmt: skip
    assert places == [(0, 0), (0, 1), (1, 0), (0, 2), (2, 0)]
    assert made.counts == [3, 1, 1]
    assert made.shapes[1] == KvPlane(2, 8, torch.float32, CPU)


def test_number_formats_are_kept_apart() -> None:
    made = KvLayout()
    assert made.place(torch.zeros(1, 2, 5, 4)) == (0, 0)
    assert made.place(torch.zeros(1, 2, 5, 4, dtype=torch.float16)) == (1, 0)


def test_a_buffer_has_all_planes_of_its_shape() -> None:
    slots = KvSlots(layout((2, 4), (2, 4), (1, 6)), 10)
    assert [tuple(buffer.shape) for buffer in slots.buffers] == [
        (2, 2, 10 + SPARE, 4),
        (1, 1, 10 + SPARE, 6),
    ]


# ------------------------------------------------------------------------------------------ growth
def test_room_that_is_there_changes_nothing() -> None:
    slots = KvSlots(layout((1, 2)), 4)
    before = slots.buffers[0]
    slots.reserve(4 + SPARE, 3)
    assert slots.buffers[0] is before


@pytest.mark.parametrize(("size", "wanted"), [(5 + SPARE, 2 * (4 + SPARE)), (9999, 9999)])
def test_slots_at_least_double_and_keep_what_is_used(size: int, wanted: int) -> None:
    slots = filled(KvSlots(layout((1, 2), (3, 4)), 4))
    slots.reserve(size, 7)
    assert slots.size == wanted
    assert all(buffer.shape[2] == wanted for buffer in slots.buffers)
    assert numbers(slots, 7) == list(range(7))


def test_a_copy_has_memory_of_its_own() -> None:
    slots = filled(KvSlots(layout((1, 2), (3, 4)), 4))
    copy = slots.copy(5)
    assert copy.size == 5 + SPARE
    slots.buffers[0].zero_()
    slots.buffers[1].zero_()
    assert numbers(copy, 5) == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------- places
def test_places_are_slots() -> None:
    slots = KvSlots(layout((1, 2)), 4)
    assert slots.places([3, 1]).tolist() == [3, 1]
    assert slots.runs(9).tolist() == [[0, 9]]
    assert slots.where(range(2, 5)) == slice(2, 5)
    assert slots.where(range(2, 2)) == slice(0, 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8], ids=str
)
def test_moves_read_before_they_write(dtype: torch.dtype) -> None:
    slots = filled(KvSlots(layout((2, 4), dtype=dtype), 4))
    slots.move([5, 3, 4, 9], 3)
    wanted = list(range(12))
    wanted[3:7] = [5, 3, 4, 9]
    assert numbers(slots, 12) == wanted


def test_moving_nothing_changes_nothing() -> None:
    slots = filled(KvSlots(layout((2, 4)), 4))
    slots.move([], 3)
    assert numbers(slots, 12) == list(range(12))


def test_places_of_another_session_are_taken() -> None:
    made = layout((1, 2), (2, 2))
    one, two = filled(KvSlots(made, 4)), filled(KvSlots(made, 9))
    for buffer in two.buffers:
        buffer += 100
    one.take(two, 3, 6, 1)
    assert numbers(one, 6) == [0, 103, 104, 105, 4, 5]


# ------------------------------------------------------------------------------------------ sessions
def test_a_session_of_its_own_memory_keeps_nothing_for_others() -> None:
    slots = filled(KvSlots(layout((1, 2)), 4))
    slots.commit([1, 2], 2, {})
    slots.cut(1)
    slots.release()
    slots.settle()
    assert not slots.keeps
    assert not slots.contiguous
    assert numbers(slots, 4) == [0, 1, 2, 3]


class Scattered(KvSlots):
    """Slots in which the places of the text lie backwards."""

    def places(self, places: range | list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:  # type: ignore[override]
        return 20 - np.asarray(places, np.int64)


def test_places_that_lie_apart_are_moved_one_by_one() -> None:
    slots = filled(Scattered(layout((1, 2)), 30))
    where = slots.where(range(2, 5))
    assert isinstance(where, torch.Tensor)
    assert where.tolist() == [18, 17, 16]
    slots.move([7, 9], 2)
    found = numbers(slots, 21)
    assert (found[18], found[17]) == (13, 11)
    assert found[16] == 16
