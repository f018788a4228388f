"""The few numbers that the host tells a pass over a tree on the device."""

from typing import Any

import torch

from sapwood.backends.torch.cuda.pass_inputs import NOTHING, PassArgs, PendingMove


class FakeEvent:
    """Notes what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    def record(self) -> None:
        self.asked.append("record")


def test_numbers_arrive_when_they_are_sent() -> None:
    args = PassArgs(torch.device("cpu"))
    args.write(40, 7, 3, PendingMove(5, 1, 2))
    assert not args.on_device.any()
    args.send()
    assert args.on_device.tolist() == [40, 7, 3, 5, 1, 2, 0, 0]


def test_a_pass_with_nothing_to_move_says_so() -> None:
    args = PassArgs(torch.device("cpu"))
    args.write(40, 7, 3, PendingMove(5, 1, 2))
    args.write(40, 9, 1, NOTHING)
    args.send()
    assert args.on_device.tolist() == [40, 9, 1, 0, 0, 0, 0, 0]


def test_the_buffer_on_the_device_stays_where_it_is() -> None:
    args = PassArgs(torch.device("cpu"))
    place = args.on_device.data_ptr()
    for length in range(3):
        args.write(0, length, 1, NOTHING)
        args.send()
        assert args.on_device.data_ptr() == place
        assert args.on_device[1] == length


def test_numbers_are_not_overwritten_before_the_last_pass_had_them() -> None:
    args = PassArgs(torch.device("cpu"))
    event: Any = FakeEvent()
    args.record_sent()  # without a device there is nothing to wait for
    args.read = event
    args.write(0, 1, 1, NOTHING)
    args.send()
    args.record_sent()
    args.write(0, 2, 1, NOTHING)
    assert event.asked == ["synchronize", "record", "synchronize"]
