"""A wait for a draft costs at most what the draft may gain, and pays on the average."""

import pytest

from sapwood.remote.wait_rule import SELDOM, WaitRule

STEP = 0.006


def rule_after(*right: int) -> WaitRule:
    """A rule that has seen trees with so many right tokens."""
    rule = WaitRule()
    for count in right * 40:
        rule.followed(count, 0, 0, useful=False)
    return rule


def test_before_the_first_tree_one_step_is_waited_at_most() -> None:
    assert WaitRule().limit(STEP, 0.0, 1.0, 0.1) == STEP


@pytest.mark.parametrize(
    ("right", "trip", "answered", "pays"),
    [
        (4, 0.001, 1.0, True),
        (4, 0.020, 1.0, True),
        (4, 0.0241, 1.0, False),  # longer than what it saves
        (4, 0.020, 0.8, False),  # what is lost is waited for in vain
        (4, 0.010, 0.8, True),
        (1, 0.020, 1.0, False),
        (0, 0.001, 1.0, False),
    ],
)
def test_a_wait_pays_or_is_left_out(right: int, trip: float, answered: float, pays: bool) -> None:
    limit = rule_after(right).limit(STEP, trip, answered, 0.1)
    assert (limit > 0) == pays
    assert limit <= right * STEP + 1e-6


def test_the_deadline_of_a_quick_link_is_kept() -> None:
    assert rule_after(8).limit(STEP, 0.001, 1.0, 0.002) == 0.002


def test_trees_that_are_pruned_away_bring_less() -> None:
    rule = WaitRule()
    for _ in range(40):
        rule.followed(6, 6, 0, useful=True)
    assert rule.gain < 0.1
    assert not rule.limit(STEP, 0.001, 0.9, 0.1)
    for _ in range(60):  # it is tried again some day
        rule.followed(6, 0, 0, useful=False)
    assert rule.gain > 4


def test_calls_that_bring_nothing_become_seldom_and_one_good_tree_brings_them_back() -> None:
    rule = WaitRule()
    rounds = [number for number in range(1000) if asked(rule)]
    assert rounds[:8] == [0, 1, 3, 7, 15, 31, 63, 63 + SELDOM]
    assert len(rounds) < 1000 / SELDOM + 6
    rule.followed(4, 0, 0, useful=True)
    assert rule.due()
    assert rule.due()


def asked(rule: WaitRule) -> bool:
    """One round; a call is answered at once, by a tree with nothing right."""
    due = rule.due()
    if due:
        rule.followed(0, 0, 0, useful=False)
    return due
