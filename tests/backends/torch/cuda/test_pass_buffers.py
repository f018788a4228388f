"""Buffers of a pass stay where they are, and answers are views of them until the next pass."""

import pytest
import torch

from sapwood.backends.torch.cuda.pass_buffers import LOGITS, PassBuffers, PassResult, join
from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS
from tests.helpers import llama_parts
from tests.helpers.llama_parts import HEAD_WIDTH, HEADS, INNER, VOCAB, WIDTH


@pytest.fixture
def buffers() -> PassBuffers:
    return PassBuffers(llama_parts.make_model())


def test_there_is_room_for_the_largest_pass(buffers: PassBuffers) -> None:
    assert buffers.streams.shape == (2, MAX_ROWS, WIDTH)
    assert buffers.middle.shape == buffers.final.shape == (MAX_ROWS, WIDTH)
    assert buffers.queries.shape == (MAX_ROWS, HEADS, HEAD_WIDTH)
    assert buffers.attention_out.shape == (MAX_ROWS, HEADS * HEAD_WIDTH)
    assert buffers.inner.shape == (MAX_ROWS, INNER)
    assert buffers.row_angles.shape == (1, MAX_ROWS, HEAD_WIDTH)
    assert buffers.row_angles.dtype == torch.float32
    assert buffers.logits.shape == (LOGITS, VOCAB)
    assert buffers.best.shape == (MAX_ROWS,)
    assert buffers.best.dtype == torch.int64


def test_the_norms_have_buffers_of_their_own(buffers: PassBuffers) -> None:
    one, two = buffers.norm_buffers
    assert one.scaled.data_ptr() != two.scaled.data_ptr()
    assert one.squares.data_ptr() != two.squares.data_ptr()
    assert one.scaled.shape == (MAX_ROWS, WIDTH)


def test_best_tokens_on_the_host_are_one_array(buffers: PassBuffers) -> None:
    buffers.host_best[3] = 7
    assert buffers.host_best_array[3] == 7


def test_logits_grow_once_and_to_the_largest_pass(buffers: PassBuffers) -> None:
    assert not buffers.reserve(LOGITS)
    assert buffers.logits.shape[0] == LOGITS
    assert buffers.reserve(LOGITS + 1)
    assert buffers.logits.shape == (MAX_ROWS, VOCAB)
    assert not buffers.reserve(MAX_ROWS)


def test_answers_are_views_of_the_buffers(buffers: PassBuffers) -> None:
    buffers.watch([1])
    result = buffers.result(5, [1], head=True)
    assert result.states is None
    assert result.logits is not None
    assert result.best is not None
    assert result.logits.shape == (5, VOCAB)
    buffers.logits[2] = 9
    buffers.best[4] = 3
    buffers.watched[1][0] = 4
    assert (result.logits[2] == 9).all()
    assert result.best[4] == 3
    assert (result.kept[1][0] == 4).all()


def test_a_pass_without_the_head_answers_with_states(buffers: PassBuffers) -> None:
    result = buffers.result(4, [], head=False)
    assert result.logits is None
    assert result.best is None
    assert result.states is not None
    buffers.final[3] = 2
    assert result.states.shape == (4, WIDTH)
    assert (result.states[3] == 2).all()


def test_the_same_question_has_the_same_answer_until_buffers_move(buffers: PassBuffers) -> None:
    buffers.watch([0, 2])
    first = buffers.result(5, [2, 0], head=True)
    assert buffers.result(5, [0, 2], head=True) is first
    assert buffers.result(6, [0, 2], head=True) is not first
    assert buffers.result(5, [0], head=True) is not first
    assert buffers.result(5, [0, 2], head=False) is not first
    buffers.reserve(MAX_ROWS)
    moved = buffers.result(5, [0, 2], head=True)
    assert moved is not first
    assert moved.logits is not None
    assert moved.logits.data_ptr() == buffers.logits.data_ptr()


def test_inputs_of_layers_are_watched_once(buffers: PassBuffers) -> None:
    assert buffers.watch([0, 2])
    before = buffers.watched[2]
    assert not buffers.watch([2])
    assert buffers.watch([2, 3])
    assert buffers.watched[2] is before
    assert sorted(buffers.watched) == [0, 2, 3]
    with pytest.raises(KeyError):
        buffers.result(1, [1], head=True)


def test_answers_list_layers_in_order(buffers: PassBuffers) -> None:
    buffers.watch([5, 1, 3])
    assert list(buffers.result(2, [5, 1, 3], head=True).kept) == [1, 3, 5]


def test_a_twin_has_room_for_as_much_elsewhere(buffers: PassBuffers) -> None:
    buffers.reserve(LOGITS + 1)
    buffers.watch([1, 2])
    twin = buffers.twin(llama_parts.make_model())
    assert twin.logits.shape == buffers.logits.shape
    assert sorted(twin.watched) == [1, 2]
    twin.logits[0] = 5
    twin.watched[1][0] = 5
    assert not buffers.logits[0].any()
    assert not buffers.watched[1][0].any()


# ----------------------------------------------------------------------------------------- results
def result(start: int, rows: int) -> PassResult:
    each = torch.arange(start, start + rows)
    return PassResult(each[:, None].float(), each.clone(), None, {1: -each[:, None].float()})


def test_a_copy_outlives_the_next_pass() -> None:
    first = result(0, 3)
    copy = first.copy()
    assert first.logits is not None
    assert first.best is not None
    first.logits.fill_(9)
    first.best.fill_(9)
    first.kept[1].fill_(9)
    assert copy.logits is not None
    assert copy.best is not None
    assert copy.logits[:, 0].tolist() == [0, 1, 2]
    assert copy.best.tolist() == [0, 1, 2]
    assert copy.kept[1][:, 0].tolist() == [0, -1, -2]
    assert copy.states is None


def test_passes_are_joined_row_by_row() -> None:
    joined = join([result(0, 3), result(3, 2)])
    assert joined.logits is not None
    assert joined.best is not None
    assert joined.logits[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert joined.best.tolist() == [0, 1, 2, 3, 4]
    assert joined.kept[1][:, 0].tolist() == [0, -1, -2, -3, -4]
    assert joined.states is None


def test_one_pass_is_joined_as_it_is() -> None:
    one = result(0, 3)
    assert join([one]) is one


def test_states_are_joined_where_there_are_no_logits() -> None:
    parts = [PassResult(None, None, torch.full((n, 2), float(n)), {}) for n in (1, 2)]
    joined = join(parts)
    assert joined.logits is None
    assert joined.best is None
    assert joined.states is not None
    assert joined.states[:, 0].tolist() == [1, 2, 2]
