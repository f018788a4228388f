"""The shape of the trees of a batch: most tokens per second of the device or the host."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sapwood.core.types import BatchLoad, TreeShape
from sapwood.engine.round_planner import DEEPER, PLANNED, RoundPlanner

WANTED = TreeShape(31, 6, 8, 8)


class Decoder:
    """A request whose policy expects these tokens of trees, by their nodes and depth."""

    def __init__(self, gains: dict[tuple[int, int], float] | None) -> None:
        self.gains = gains
        self.session = SimpleNamespace(length=100)
        self.wanted: TreeShape | None = WANTED
        self.plans = 0

    def plan_round(self, load: BatchLoad) -> TreeShape | None:
        self.plans += 1
        return self.wanted

    def round_gain(self, shape: TreeShape) -> float | None:
        if self.gains is None:
            return None
        return self.gains.get((shape.nodes, shape.depth), 0.1)


def requests_of(decoder: Decoder, count: int = 4, *, priced: bool = True) -> list[Any]:
    return [SimpleNamespace(running=decoder, priced=priced) for _ in range(count)]


class Seconds:
    """A launcher whose rounds take as long as they have rows."""

    def __init__(self, fixed: float, row: float) -> None:
        self.fixed, self.row = fixed, row

    def seconds(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        return self.fixed + self.row * requests * (1 + shape.nodes)


GAINS = {(1, 1): 0.6, (3, 2): 1.2, (7, 4): 1.9, (15, 6): 2.3}


@pytest.mark.parametrize(
    ("row", "shape"), [(0.0, (15, 6)), (0.01, (7, 4)), (0.04, (3, 2)), (0.5, (1, 1))]
)
def test_dearer_rows_make_smaller_trees(row: float, shape: tuple[int, int]) -> None:
    launcher: Any = Seconds(1.0, row)
    found = RoundPlanner(512, lambda: 1.0).shape(requests_of(Decoder(GAINS)), launcher)
    assert found is not None
    assert (found.nodes, found.depth) == shape


def planned_after(row: float, seconds: Callable[[float], float], host: float) -> int:
    """Nodes of trees after many rounds whose seconds follow from the device's, and the host's."""
    launcher: Any = Seconds(1.0, row)
    planner = RoundPlanner(512, lambda: 1.0)
    requests = requests_of(Decoder(GAINS))
    for _ in range(60 * PLANNED):
        shape = planner.shape(requests, launcher)
        assert shape is not None
        device = launcher.seconds(shape, 4, 0)
        accepted = 4 * GAINS.get((shape.nodes, shape.depth), 0.1)
        planner.observe(shape, 4, accepted, seconds(device), host)
    found = planner.shape(requests, launcher)
    assert found is not None
    return found.nodes


def test_what_the_host_needs_anyway_is_free() -> None:
    assert planned_after(0.04, lambda device: device, host=0.0) == 3
    assert planned_after(0.04, lambda device: max(device, 4.0), host=4.0) == 15


def test_prompts_in_a_round_say_nothing_of_its_seconds() -> None:
    assert planned_after(0.04, lambda device: 0.0, host=9.0) == 3


def test_what_rounds_take_besides_makes_larger_trees_pay() -> None:
    assert planned_after(0.04, lambda device: device + 3.0, host=0.0) > 3


def test_fewer_accepted_tokens_than_expected_make_smaller_trees() -> None:
    launcher: Any = Seconds(1.0, 0.01)
    decoder: Any = Decoder(GAINS)
    planner = RoundPlanner(512, lambda: 1.0)
    for _ in range(200):
        planned = planner.shape(requests_of(decoder), launcher)
        assert planned is not None
        planner.observe(planned, 4, 1, 0.0, 0.0)
    found = planner.shape(requests_of(decoder), launcher)
    assert found is not None
    assert found.nodes < 7


def test_a_plan_holds_for_some_rounds_of_the_same_load() -> None:
    launcher: Any = Seconds(1.0, 0.01)
    decoder = Decoder(GAINS)
    planner = RoundPlanner(32, lambda: 1.0)  # rows of four trees of seven nodes
    for _ in range(PLANNED):
        planner.shape(requests_of(decoder), launcher)
    assert decoder.plans == 1
    planner.shape(requests_of(decoder, 9), launcher)
    assert decoder.plans == 2


def test_now_and_then_trees_are_a_level_deeper() -> None:
    launcher: Any = Seconds(1.0, 0.01)
    planner = RoundPlanner(512, lambda: 1.0)
    depths = set()
    for _ in range(DEEPER * PLANNED):
        found = planner.shape(requests_of(Decoder(GAINS)), launcher)
        assert found is not None
        depths.add((found.nodes, found.depth))
    assert depths == {(7, 4), (7, 6)}


def test_trees_fit_the_rows_of_a_pass() -> None:
    launcher: Any = Seconds(1.0, 0.0)
    found = RoundPlanner(32, lambda: 1.0).shape(requests_of(Decoder(GAINS)), launcher)
    assert found is not None
    assert found.nodes == 7


def test_trees_leave_room_for_prompts_in_their_pass() -> None:
    launcher: Any = Seconds(1.0, 0.0)
    planner = RoundPlanner(64, lambda: 1.0)
    requests = requests_of(Decoder(GAINS))
    sizes = []
    for prefill in (0, 20, 40, 60):
        found = planner.shape(requests, launcher, prefill)
        assert found is not None
        sizes.append(found.nodes)
    assert sizes == [15, 7, 3, 1]


def test_a_size_that_brings_less_than_expected_is_left() -> None:
    """Not the others with it: the drafter's probabilities err more in large trees."""
    launcher: Any = Seconds(1.0, 0.0)
    decoder: Any = Decoder(GAINS)
    planner = RoundPlanner(512, lambda: 1.0)
    sizes = set()
    for _ in range(40 * PLANNED):
        planned = planner.shape(requests_of(decoder), launcher)
        assert planned is not None
        sizes.add(planned.nodes)
        planner.observe(planned, 4, 4 if planned.nodes == 15 else 8, 0.0, 0.0)
    found = planner.shape(requests_of(decoder), launcher)
    assert found is not None
    assert sizes == {7, 15}
    assert found.nodes == 7


def test_before_gains_are_known_a_plan_holds_for_one_round() -> None:
    decoder = Decoder(None)
    planner = RoundPlanner(512, lambda: 1.0)
    launcher: Any = Seconds(1.0, 0.0)
    for _ in range(3):
        found = planner.shape(requests_of(decoder), launcher)
        assert found is not None
        assert found.nodes == 15  # of few rows
    assert decoder.plans == 3


def test_without_a_budget_there_is_no_shape() -> None:
    decoder = Decoder(GAINS)
    decoder.wanted = None
    launcher: Any = Seconds(1.0, 0.0)
    assert RoundPlanner(512, lambda: 1.0).shape(requests_of(decoder), launcher) is None


def test_a_fixed_recipe_has_the_shape_that_it_asks_for() -> None:
    launcher: Any = Seconds(1.0, 1.0)
    found = RoundPlanner(512, lambda: 1.0).shape(
        requests_of(Decoder(GAINS), priced=False), launcher
    )
    assert found is WANTED
