"""Buffers of a draft, and the words that the host tells it in one transfer."""

from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.draft_buffers import (
    MAX_NEW_ROWS,
    DeviceTimer,
    DraftArgs,
    DraftBuffers,
    angles_of,
    kernels,
    listed,
)
from sapwood.backends.torch.cuda.draft.eagle_layer import CELLS, EagleWeights, describe
from sapwood.backends.torch.cuda.draft.reference import LAST, NEW, ROOT_TOKEN, SCALARS
from sapwood.heads.layers import rotate
from tests.helpers import head_folders

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def layer() -> EagleWeights:
    head = head_folders.make()
    return describe(head, torch.zeros(head.config.vocab, head.config.shape.width))


def test_buffers_have_room_for_all_rows(layer: EagleWeights) -> None:
    buffers = DraftBuffers(layer, 9, 40)
    width = layer.width
    assert buffers.states.shape == buffers.base.shape == buffers.middle.shape == (9, width)
    assert buffers.x.shape == (9, 2 * width)
    assert buffers.query.shape == (9, 4, 8)
    assert buffers.attention_out.shape == (9, 4 * 8)
    assert buffers.gated.shape == (9, layer.inner)
    assert buffers.outputs.shape == (2, 9, width)
    assert buffers.logits.shape == (9, len(layer.vocabulary))
    assert buffers.sees.shape == (2, 9, 40)
    assert not buffers.sees.any()
    assert buffers.root_base.shape == (1, width)
    assert buffers.root_query.shape == (1, 4, 8)


def test_facts_come_in_order_and_tokens_behind_them() -> None:
    told = listed({ROOT_TOKEN: 9, NEW: 2, LAST: 1}, [7, 9])
    assert len(told) == SCALARS + 2
    assert told[NEW] == 2
    assert told[LAST] == 1
    assert told[ROOT_TOKEN] == 9
    assert told[SCALARS:] == [7, 9]
    assert sum(told[:SCALARS]) == 12  # the others are 0


def test_what_is_told_arrives_in_one_transfer() -> None:
    args = DraftArgs(CPU)
    lines = np.stack((np.arange(CELLS), -np.arange(CELLS)), 1).astype(np.float64)
    args.write(listed({NEW: 3}, [4, 5, 6]), lines)
    assert not args.words.any()
    args.send()
    assert args.scalars[NEW] == 3
    assert args.tokens[:4].tolist() == [4, 5, 6, 0]
    assert torch.equal(args.table, torch.from_numpy(lines))
    assert len(args.words) == SCALARS + MAX_NEW_ROWS + 2 * CELLS


def test_parts_are_views_of_one_buffer() -> None:
    args = DraftArgs(CPU)
    size = args.words.element_size()
    assert args.scalars.data_ptr() == args.words.data_ptr()
    assert args.tokens.data_ptr() == args.words.data_ptr() + SCALARS * size
    assert args.table.data_ptr() == args.words.data_ptr() + (SCALARS + MAX_NEW_ROWS) * size
    assert args.table.dtype == torch.float64
    assert args.table.shape == (CELLS, 2)


def test_without_lines_the_draft_is_trusted() -> None:
    args = DraftArgs(CPU)
    args.write(listed({}, []), None)
    args.send()
    assert (args.table == torch.tensor([0.0, 1.0])).all()


def test_lines_of_one_draft_do_not_reach_the_next() -> None:
    args = DraftArgs(CPU)
    args.correct(np.full((CELLS, 2), 0.25))
    args.correct(np.full((CELLS, 2), 0.5))
    args.send()
    assert (args.table == 0.5).all()
    args.correct(None)
    args.send()
    assert (args.table == torch.tensor([0.0, 1.0])).all()
    args.correct(None)
    args.send()
    assert (args.table == torch.tensor([0.0, 1.0])).all()


def test_words_are_not_overwritten_before_the_device_had_them() -> None:
    args = DraftArgs(CPU)
    asked: list[str] = []

    class Event:
        def synchronize(self) -> None:
            asked.append("synchronize")

        def record(self) -> None:
            asked.append("record")

    args.record_sent()  # nothing to note without a device
    event: Any = Event()
    args.read = event
    args.write([1], None)
    args.record_sent()
    args.write([2], None)
    assert asked == ["synchronize", "record", "synchronize"]


def test_angles_rotate_as_the_head_does(layer: EagleWeights) -> None:
    angles = angles_of(layer, 50)
    assert angles.shape == (50, layer.head_width)
    assert angles[0].tolist() == [1.0] * 4 + [0.0] * 4
    positions = torch.tensor([0, 3, 49])
    x = torch.randn(2, 3, layer.head_width, generator=torch.Generator().manual_seed(0))
    wanted = rotate(x, positions, head_folders.CONFIG.shape.theta)
    found = reference.rotate(x.transpose(0, 1), angles[positions]).transpose(0, 1)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_a_cpu_takes_the_plain_steps() -> None:
    assert kernels(CPU) is reference


def test_where_the_host_waits_anyway_nothing_is_timed() -> None:
    timer = DeviceTimer(CPU)
    timer.start()
    timer.stop()
    assert timer.seconds() == 0.0


def test_seconds_lie_between_the_two_marks() -> None:
    timer = DeviceTimer(CPU)

    class Mark:
        def __init__(self, at: float) -> None:
            self.at = at
            self.recorded = False

        def record(self) -> None:
            self.recorded = True

        def elapsed_time(self, end: "Mark") -> float:
            assert self.recorded
            assert end.recorded
            return end.at - self.at

    marks: Any = [Mark(2.0), Mark(9.0)]
    timer.marks = marks
    timer.start()
    timer.stop()
    assert timer.seconds() == pytest.approx(0.007)  # events count milliseconds
