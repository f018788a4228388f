"""One request of a shared pass pauses when its own drafts do not pay."""

import numpy as np
import pytest

from sapwood.controllers.draft_backoff import FIRST, LONGEST, LOSS, DraftBackoff
from sapwood.controllers.goodput import Goodput
from sapwood.core.types import BatchLoad
from sapwood.engine.cost_model import CostModel
from tests.helpers.controller_rounds import begin


def pause(backoff: DraftBackoff) -> int:
    """Rounds of the present pause."""
    rounds = 0
    while backoff.pauses():
        rounds += 1
    return rounds


def test_each_fruitless_try_doubles_the_pause() -> None:
    backoff = DraftBackoff()
    lengths = []
    for _ in range(7):
        backoff.observe(-LOSS - 0.01)
        lengths.append(pause(backoff))
    assert lengths == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, LONGEST, LONGEST, LONGEST]


def test_small_losses_add_up_and_the_next_try_is_shorter() -> None:
    backoff = DraftBackoff()
    backoff.observe(-0.6 * LOSS)
    assert not pause(backoff)
    backoff.observe(-0.6 * LOSS)
    assert pause(backoff) == FIRST
    backoff.observe(-0.7 * LOSS)
    assert pause(backoff) == 2 * FIRST


def test_a_gain_makes_the_next_pause_short_again() -> None:
    backoff = DraftBackoff()
    backoff.observe(-1.0)
    pause(backoff)
    backoff.observe(2.0)
    assert not pause(backoff)
    backoff.observe(-3.0)
    assert pause(backoff) == FIRST


@pytest.mark.parametrize(("row", "drafts"), [(0.5, True), (0.99, False)])
def test_nothing_is_drafted_where_a_node_costs_a_token(row: float, drafts: bool) -> None:
    # seconds of passes over 1, 2, ... rows: four roots take one second, each further row `row` / 4
    rows = np.arange(1, 65)
    seconds = np.where(rows <= 4, 1.0, 1.0 + (rows - 4) * row / 4)
    controller = begin(Goodput(nodes=8), CostModel(rows.tolist(), [0], [seconds.tolist()]))
    controller.join(BatchLoad(trees=4, rows=3, rate=4.0))
    assert (controller.budget().nodes > 0) is drafts
    assert (controller.resting == 0) is drafts  # a device may run ahead meanwhile


@pytest.mark.parametrize("alike", [False, True])
def test_a_request_in_a_pause_still_plans_the_trees_of_all(alike: bool) -> None:
    controller = begin(Goodput(nodes=8), CostModel([1, 64], [0], [[1.0, 1.0]]))
    controller.join(BatchLoad(trees=4, rows=3, rate=4.0, alike=alike))
    controller.backoff_.observe(-2 * LOSS)
    assert (controller.budget().nodes > 0) is alike
