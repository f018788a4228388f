"""Seconds of rounds on the device, for batches of any size."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.triton_mode import require

require()

from sapwood.backends.torch.cuda.draft.eagle_layer import level_sizes
from sapwood.backends.torch.cuda.rounds.launched_round import result_columns
from sapwood.backends.torch.cuda.rounds.round_seconds import RoundSeconds, usual_trees
from sapwood.core.types import TreeShape

SHAPE = TreeShape(7, 2, 4, 4)
SIZES = level_sizes(2, 4, 4)


def seconds_of(timed: dict[int, float]) -> RoundSeconds:
    """Drafts take 0.1 and verdicts 0.01 for each request of a batch, passes what is given."""
    rounds: Any = SimpleNamespace(
        level_sizes=lambda shape: SIZES,
        pass_shape=lambda count, each, longest: (count, each, longest),
        draft_seconds={(count, SIZES): 0.1 * count for count in timed},
    )
    found = RoundSeconds(rounds)
    for count, seconds in timed.items():
        key: Any = (count, 8, 512), 8
        found.passes[key] = seconds
        found.verdicts[count, result_columns(SIZES.depth, 8)] = 0.01 * count
    return found


def test_a_round_takes_as_long_as_its_steps() -> None:
    found = seconds_of({4: 1.0, 8: 2.0})
    assert found.of(SHAPE, 8, 100) == pytest.approx(2.0 + 0.8 + 0.08)
    assert found.of(SHAPE, 4, 100) == pytest.approx(1.0 + 0.4 + 0.04)


def test_batches_between_two_sizes_take_what_lies_between() -> None:
    """Their drafts are padded; their passes have fewer rows."""
    found = seconds_of({4: 1.0, 8: 2.0})
    for requests in (5, 6, 7):
        expected = 1.0 + (requests - 4) / 4 + 0.8 + 0.08
        assert found.of(SHAPE, requests, 100) == pytest.approx(expected)


def test_what_was_not_timed_or_does_not_fit_is_unknown() -> None:
    found = seconds_of({4: 1.0, 8: 2.0})
    assert found.of(SHAPE, 16, 100) is None
    assert found.of(SHAPE, 9, 100) is None
    assert found.of(SHAPE, 8, 1000) is None  # longer texts
    assert found.of(SHAPE, 65, 100) is None  # too many rows
    found.rounds.level_sizes = lambda shape: None  # type: ignore[method-assign]
    assert found.of(TreeShape(3, 2, 4, 4), 8, 100) is None


def test_passes_are_timed_over_full_trees_of_different_texts() -> None:
    rows = usual_trees(3, 8, 512, 1000)
    assert rows.sizes.tolist() == [8, 8, 8]
    assert rows.firsts.tolist() == [0, 1000, 2000]
    assert set(rows.lengths.tolist()) == {307}
