"""The simulated fleet: one replica by hand, what was measured, routing, and the page."""

from dataclasses import replace

import pytest
from tools import fleet_simulator
from tools.fleet_model import (
    FleetRequest,
    SimulatedReplica,
    SpeedCurve,
    arrivals,
    by_session,
    in_turn,
    run_closed,
    run_open,
)

# a step takes 1 s and half a second more for each further request; prompts take no time
CURVE = SpeedCurve((1.0, 3.0), (1.0, 2.0), (1.0, 1.0), (1e9, 1e9))


@pytest.fixture(scope="module")
def curve() -> SpeedCurve:
    """The curve of the GPU, fitted once."""
    return fleet_simulator.gpu_curve(fleet_simulator.gpu_rows())


def test_a_curve_is_a_line_between_and_beyond_its_points() -> None:
    assert [CURVE.step(batch) for batch in (1, 2, 3, 5)] == [1.0, 1.5, 2.0, 3.0]
    assert replace(CURVE, tokens=(1.0, 3.0)).gain(2) == 2.0


def test_one_replica_by_hand() -> None:
    """Two requests of 3 and 5 tokens: the first alone for a step, then both, then the second."""
    found = run_closed(SimulatedReplica(CURVE, limit=8), [3, 5], level=2)
    assert [one.first for one in found] == pytest.approx([1.0, 2.5], abs=1e-3)
    assert [one.done for one in found] == pytest.approx([4.0, 7.0], abs=1e-3)


def test_no_more_requests_than_the_limit_share_a_step() -> None:
    found = run_closed(SimulatedReplica(CURVE, limit=1), [2, 2], level=2)
    assert [one.done for one in found] == pytest.approx([2.0, 4.0], abs=1e-3)


def test_a_prompt_is_prefilled_before_its_first_token() -> None:
    slow = replace(CURVE, prompts=(0.5, 0.5))
    [one] = run_closed(SimulatedReplica(slow, limit=1), [2], level=1)
    assert (one.first, one.done) == pytest.approx((3.0, 4.0))


def test_a_cached_prefix_saves_its_part_of_the_prefill() -> None:
    slow = replace(CURVE, prompts=(0.5, 0.5))
    replica = SimulatedReplica(slow, limit=1, room=1, shared=0.75)
    requests = [FleetRequest(at, 1, session) for at, session in ((0.0, 1), (50.0, 1), (90.0, 2))]
    run_open([replica], requests, in_turn())
    assert [one.first - one.arrived for one in requests] == pytest.approx([3.0, 1.5, 3.0])
    assert replica.hits == 1
    assert list(replica.cached) == [2]


def test_sessions_stay_where_they_are_until_the_load_is_uneven() -> None:
    replicas = [SimulatedReplica(CURVE, limit=8) for _ in range(4)]
    one = FleetRequest(0.0, 1, session=5)
    home = by_session(one, replicas)
    assert by_session(one, replicas) == home
    replicas[home].waiting.extend(FleetRequest(0.0, 1) for _ in range(4))
    assert by_session(one, replicas) != home


def test_every_request_is_served_and_a_run_repeats(curve: SpeedCurve) -> None:
    ends = []
    for _ in range(2):
        requests = arrivals(200, 2.0, [60, 120], seed=3, turns=4)
        run_open(fleet_simulator.fleet(curve, 3, room=9), requests, by_session)
        assert all(one.arrived < one.first <= one.done for one in requests)
        ends.append([one.done for one in requests])
    assert ends[0] == ends[1]


def test_measured_rates_are_simulated_within_a_tenth(curve: SpeedCurve) -> None:
    for row in fleet_simulator.gpu_rows():
        found = fleet_simulator.like_measured(curve, row)
        assert found.rate == pytest.approx(row["tokens_per_second"], rel=0.1)
        assert found.first == pytest.approx(row["first_token_ms"], rel=0.1)
    rows = fleet_simulator.cpu_rows("plain")
    for row in rows:
        found = fleet_simulator.cpu_measured(fleet_simulator.cpu_curve(rows), row)
        assert found.rate == pytest.approx(row["tokens_per_second"], rel=0.1)


def test_more_replicas_wait_less(curve: SpeedCurve) -> None:
    few, many = (fleet_simulator.served(curve, count, 100, in_turn())[0].late for count in (2, 4))
    assert many < few


@pytest.mark.slow
def test_the_page_is_what_the_records_give() -> None:
    assert fleet_simulator.main(["--check"]) == 0
