"""The words of one round on the device: who may still read them, and what happens before they are overwritten."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import (
    LONGEST,
    OPENED,
    PLACES,
    REAL,
    ROWS,
    SIZES,
    WORDS,
    DeferredMove,
    DeviceTree,
    FeatureRef,
    RoundBuffer,
    RoundUse,
    ints,
    reals,
    to_device_tree,
)
from sapwood.core.tree import CAPACITY, LAZY, Tree

CPU = torch.device("cpu")


@pytest.fixture
def round_buffer() -> RoundBuffer:
    return RoundBuffer(CPU)


def small() -> Tree:
    tree = Tree(5)
    tree.add(0, 6, 0.5)
    tree.add(1, 7, 0.25)
    return tree


# ------------------------------------------------------------------------------------------ fields
def test_every_field_has_its_words(round_buffer: RoundBuffer) -> None:
    for name, size in SIZES.items():
        field = round_buffer.field(name)
        assert len(field) == size
        assert field.dtype == (torch.float64 if name in REAL else torch.int64)
        assert round_buffer.words_of(name).dtype == torch.int64
    assert len(round_buffer.words) == sum(SIZES.values()) == len(round_buffer.host)
    assert SIZES["grown_tokens"] == CAPACITY
    assert SIZES["opened"] == OPENED


def test_writing_one_field_changes_no_other(round_buffer: RoundBuffer) -> None:
    for number, name in enumerate(SIZES, 1):
        round_buffer.field(name).fill_(number)
    for number, name in enumerate(SIZES, 1):
        assert (round_buffer.field(name) == number).all(), name


def test_rows_and_path_are_views(round_buffer: RoundBuffer) -> None:
    round_buffer.field("tokens")[3] = 8
    round_buffer.field("depths")[3] = 2
    round_buffer.field("verdict")[2] = 4
    assert round_buffer.rows.tokens[3] == 8
    assert round_buffer.rows.depths[3] == 2
    assert round_buffer.path[0] == 4
    assert round_buffer.path.shape == (LONGEST,)
    assert round_buffer.rows.words.shape == (ROWS, WORDS)


def test_words_come_to_the_host_when_they_are_sent(round_buffer: RoundBuffer) -> None:
    round_buffer.field("tokens")[:3] = torch.tensor([4, 5, 6])
    round_buffer.field("reach")[:2] = torch.tensor([1.0, 0.125])
    assert not round_buffer.host_array.any()
    round_buffer.send()
    assert ints(round_buffer.host_array, "tokens", 3).tolist() == [4, 5, 6]
    assert reals(round_buffer.host_array, "reach", 2).tolist() == [1.0, 0.125]


def test_fields_on_the_host_are_cut_to_size() -> None:
    words = np.arange(sum(SIZES.values()))
    for name, place in PLACES.items():
        assert ints(words, name, 2).tolist() == [place.start, place.start + 1]


# ------------------------------------------------------------------------------------------ rounds
def test_a_round_is_live_until_the_next_begins(round_buffer: RoundBuffer) -> None:
    first = RoundUse.begin(round_buffer, 3)
    alone = first.live
    second = RoundUse.begin(round_buffer, 4)
    assert (alone, first.live, second.live) == (True, False, True)
    assert (first.depth, second.depth) == (3, 4)


def test_words_are_brought_once_and_are_a_copy(round_buffer: RoundBuffer) -> None:
    turn = RoundUse.begin(round_buffer, 1)
    round_buffer.field("tokens")[0] = 4
    words = turn.fetch()
    assert turn.fetch() is words
    round_buffer.field("tokens")[0] = 9
    round_buffer.send()
    assert ints(words, "tokens", 1).tolist() == [4]


def test_words_of_a_round_that_is_over_cannot_be_brought(round_buffer: RoundBuffer) -> None:
    turn = RoundUse.begin(round_buffer, 1)
    RoundUse.begin(round_buffer, 1)
    with pytest.raises(RuntimeError, match="read a column before the next round"):
        turn.fetch()


# ---------------------------------------------------------------------------------------- features
def features_ready(round_buffer: RoundBuffer, rows: int) -> RoundUse:
    """A round whose verdict has left the features of its path."""
    round_buffer.hidden_states = torch.arange(12.0).view(4, 3).clone()
    turn = RoundUse.begin(round_buffer, 3)
    turn.path = tuple(range(rows))
    turn.features_ready = True
    return turn


def test_features_are_read_where_the_verdict_left_them(round_buffer: RoundBuffer) -> None:
    features = features_ready(round_buffer, 2).path_features()
    assert features is not None
    assert features.in_place
    assert features.tensor().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert round_buffer.hidden_states is not None
    assert features.tensor().data_ptr() == round_buffer.hidden_states.data_ptr()


def test_features_move_elsewhere_before_they_are_overwritten(round_buffer: RoundBuffer) -> None:
    features = features_ready(round_buffer, 2).path_features()
    assert features is not None
    round_buffer.release_features()
    assert round_buffer.hidden_states is not None
    round_buffer.hidden_states.fill_(99)
    assert not features.in_place
    assert features.tensor().tolist() == [[0, 1, 2], [3, 4, 5]]
    round_buffer.release_features()  # nobody relies on them any more
    assert features.tensor().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_features_that_nobody_wants_are_not_copied(
    round_buffer: RoundBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = features_ready(round_buffer, 2).path_features()
    monkeypatch.setattr(FeatureRef, "copy_out", lambda self: pytest.fail("nobody wants them"))
    del features
    round_buffer.release_features()


@pytest.mark.parametrize("why", ["not recalled", "over"])
def test_features_that_are_not_there_cannot_be_claimed(round_buffer: RoundBuffer, why: str) -> None:
    turn = features_ready(round_buffer, 2)
    if why == "over":
        RoundUse.begin(round_buffer, 1)
    else:
        turn.features_ready = False
    assert turn.path_features() is None


# ---------------------------------------------------------------------------------- deferred moves
def test_a_deferred_move_is_made_once_or_never() -> None:
    made: list[str] = []
    move = DeferredMove(lambda: made.append("once"))
    move.run()
    move.run()
    assert made == ["once"]
    never = DeferredMove(lambda: made.append("never"))
    never.cancel()
    never.run()
    assert made == ["once"]


def test_what_is_owed_is_done_before_another_path_is_walked(round_buffer: RoundBuffer) -> None:
    made: list[int] = []
    round_buffer.deferred = DeferredMove(lambda: made.append(1))
    round_buffer.run_deferred()
    round_buffer.run_deferred()
    assert made == [1]
    assert round_buffer.deferred is None


# ------------------------------------------------------------------------------------------- trees
def test_a_column_is_read_from_the_device_once() -> None:
    built: list[int] = []
    round_buffer = RoundBuffer(CPU)

    def build(words: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tree:
        built.append(len(words))
        return small()

    tree = DeviceTree(RoundUse.begin(round_buffer, 2), 3, build)
    assert len(tree) == 3
    assert built == []
    assert tree.tokens.tolist() == [5, 6, 7]
    assert tree.depths.tolist() == [0, 1, 2]
    assert built == [len(round_buffer.words)]


def test_what_was_set_before_the_columns_came_is_kept() -> None:
    tree = DeviceTree(RoundUse.begin(RoundBuffer(CPU), 2), 3, lambda words: small())
    tree.proposals = {(0, 1): np.ones(2)}
    assert tree.tokens.tolist() == [5, 6, 7]
    assert list(tree.proposals) == [(0, 1)]


def test_unknown_attributes_bring_nothing() -> None:
    tree = DeviceTree(
        RoundUse.begin(RoundBuffer(CPU), 2), 3, lambda words: pytest.fail("nothing is asked for")
    )
    assert "tokens" not in LAZY  # a property over a column, which is lazy
    with pytest.raises(AttributeError, match="DeviceTree has no attribute 'nothing'"):
        _ = tree.nothing


def test_seconds_of_a_draft_are_asked_for_late() -> None:
    tree = DeviceTree(RoundUse.begin(RoundBuffer(CPU), 2), 3, lambda words: small())
    assert tree.drafting == 0.0
    tree.draft_timer = lambda: 0.25
    assert tree.drafting == 0.25


def test_the_walked_path_and_its_beginnings_lie_on_the_device() -> None:
    tree = to_device_tree(small(), CPU)
    tree.round_use.path = (0, 1, 2)
    tree.round_use.round_buffer.path[:3] = torch.tensor([0, 1, 2])
    for path in ((0, 1, 2), (0, 1), (0,)):
        rows = tree.path_rows(path)
        assert rows is not None
        assert rows.tolist() == list(path)
    assert tree.path_rows((0, 2)) is None
    assert tree.path_rows((0, 1, 2, 3)) is None
    RoundUse.begin(tree.round_use.round_buffer, 1)
    assert tree.path_rows((0, 1)) is None


def test_a_host_tree_on_the_device_has_blank_rows_behind_it() -> None:
    tree = to_device_tree(small(), CPU)
    rows = tree.rows
    assert rows is not None
    assert not rows.tokens[3:].any()
    assert not rows.words[3:].any()
    assert rows.words[:3, 0].tolist() == [0b1, 0b11, 0b111]
    assert tree.round_use.depth == 2
