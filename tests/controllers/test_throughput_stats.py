"""When the throughput statistics of a recipe forgive an earlier failure: after a faster stretch, not after an equal one."""

from dataclasses import replace

import pytest

from sapwood.controllers.throughput_stats import GAINED, RoundShare, ThroughputStats, refine
from sapwood.core.types import SharedPass
from sapwood.engine.cost_model import CostModel, flat


def after_failure() -> ThroughputStats:
    """Statistics after a failed try: the next rest would be twice as long."""
    stats = ThroughputStats(slack=0.03, patience=3, first_pause=8, longest=64, probe=100)
    stats.pause = 16
    stats.failed = True
    return stats


def settle(stats: ThroughputStats, tokens: int, nodes: int, draft: float = 0.0) -> None:
    stats.entries.append(RoundShare(tokens, nodes, 0, draft))
    stats.settle(SharedPass(1, 1 + nodes, 0, 0, 1.0), flat())


def test_rounds_without_a_tree_are_plain_decoding_and_prove_nothing() -> None:
    stats = after_failure()
    settle(stats, tokens=1, nodes=0)
    assert stats.plain == stats.seconds == 1.0
    assert (stats.pause, stats.failed, stats.rest) == (16, True, 0)


def test_a_faster_stretch_is_forgiven_and_a_slower_one_ends_in_a_rest() -> None:
    stats = after_failure()
    settle(stats, tokens=3, nodes=2)  # a third of the patience after a failure
    assert (stats.pause, stats.failed, stats.rest) == (8, False, 0)
    stats = after_failure()
    settle(stats, tokens=1, nodes=2, draft=0.5)
    assert (stats.pause, stats.failed, stats.rest) == (32, True, 16)
    assert stats.seconds == stats.plain == 0.0


def test_a_rest_counts_down_by_rounds_and_counts_nothing() -> None:
    stats = after_failure()
    stats.rest = 2
    for left in (1, 0):
        settle(stats, tokens=1, nodes=0)
        assert (stats.rest, stats.seconds) == (left, 0.0)
    settle(stats, tokens=1, nodes=0)
    assert stats.seconds == pytest.approx(1.0)


def test_rounds_of_a_rest_bring_the_next_probe_nearer() -> None:
    stats = ThroughputStats(slack=0.03, patience=3, first_pause=8, longest=64, probe=2)
    stats.rest = 3
    stats.settle_rest()
    assert not stats.probes()
    stats.settle_rest()
    assert stats.probes()
    assert stats.rest == 1


def test_fewer_trees_end_a_rest_and_forgive_what_led_to_it() -> None:
    stats = after_failure()
    stats.rest, stats.rest_trees = 5, 8
    stats.set_load(5, 1.0)
    assert (stats.pause, stats.failed, stats.rest) == (16, True, 5)
    stats.set_load(4, 1.0)
    assert (stats.pause, stats.failed, stats.rest) == (8, False, 0)


def test_what_reading_took_is_left_out_of_a_shared_pass() -> None:
    cost = CostModel([1, 2, 4], [0], [[1.0, 2.0, 6.0]])
    shared = SharedPass(trees=1, rows=2, prefill=2, context=0, seconds=3.0)
    assert refine(cost, shared) == replace(shared, prefill=0, seconds=3.0 * 2.0 / 6.0)
    assert cost.table == [[1.0, 2.0, 6.0]]  # rows that are read say little about the others


def test_a_mishap_is_left_out_of_a_pass() -> None:
    cost = CostModel([1, 2, 4], [0], [[1.0, 2.0, 6.0]])
    usual = SharedPass(trees=1, rows=2, prefill=0, context=0, seconds=3.0)
    assert refine(cost, usual) is usual
    cost = CostModel([1, 2, 4], [0], [[1.0, 2.0, 6.0]])
    assert refine(cost, replace(usual, seconds=9.0)).seconds == pytest.approx(2.0)


def test_a_try_that_costs_much_ends_before_the_patience() -> None:
    stats = ThroughputStats(slack=0.03, patience=24, first_pause=8, longest=64, probe=100)
    rounds = 0
    while not stats.rest:
        settle(stats, tokens=1, nodes=2, draft=0.2)
        rounds += 1
    assert rounds == 3  # half a token is lost by then
    stats.rest = 0
    while not stats.rest:
        settle(stats, tokens=1, nodes=2, draft=0.2)
        rounds += 1
    assert rounds == 3 + 3  # the next try may lose a third of that


def test_a_rest_is_as_long_as_what_its_try_has_lost() -> None:
    stats = ThroughputStats(slack=0.03, patience=24, first_pause=8, longest=512, probe=64)
    rounds = 0
    while not stats.rest:  # a drafter that waits as long as three passes, for nothing
        stats.entries.append(RoundShare(1, 1, 1, 3.0, one_call=True))
        stats.settle(SharedPass(1, 2, 0, 10, 1.0), flat())
        rounds += 1
    assert rounds <= 5
    assert stats.rest == int(rounds * (3 - 0.25) / 0.015)  # what every try may lose is left out


def test_one_slow_round_does_not_make_a_rest_long() -> None:
    stats = ThroughputStats(slack=0.03, patience=24, first_pause=8, longest=512, probe=64)
    for draft in (0.1, 30.0, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3):
        if not stats.rest:
            stats.entries.append(RoundShare(1, 1, 0, draft, one_call=True))
            stats.settle(SharedPass(1, 2, 0, 10, 1.0), flat())
    assert 0 < stats.rest <= 32


def test_with_a_slack_of_one_no_try_ends_early() -> None:
    stats = ThroughputStats(slack=1.0, patience=24, first_pause=8, longest=64, probe=100)
    for _ in range(60):
        settle(stats, tokens=1, nodes=2, draft=5.0)
        assert not stats.rest


def test_gains_of_a_text_allow_a_short_fruitless_try_and_do_not_outlast_it() -> None:
    stats = ThroughputStats(slack=0.03, patience=100, first_pause=8, longest=64, probe=100)
    for _ in range(10):
        settle(stats, tokens=6, nodes=6, draft=0.1)
    assert stats.lost == -GAINED
    rounds = 0
    while not stats.rest:
        settle(stats, tokens=1, nodes=2, draft=0.2)
        rounds += 1
    assert 3 < rounds < 12
    stats.rest, stats.lost = 0, -GAINED
    stats.begin_text()
    assert stats.lost == 0
