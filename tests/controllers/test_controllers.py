"""Controllers: what the next budget is, after what happened."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.ema import Ema
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.heuristic import Heuristic
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import NO_NODES, Budget, Outcome, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies.best import Best
from sapwood.policies.reach import worth
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

Some = TypeVar("Some", Fixed, Heuristic, Ema, Goodput)
SCORES = ToyOutput(np.zeros((1, 3)))
STEEP = CostModel([1, 2, 1024], [0], [[1.0, 100.0, 100.0]])  # a second row costs a hundred passes


def begin(controller: Some, cost: CostModel | None = None) -> Some:
    """A controller at the start of a request."""
    controller.bind(EngineContext(ToyBackend(), cost or flat(), no_loader))
    controller.reset(
        RequestContext([0, 1, 2], Sampler(Sampling(), [0, 1, 2]), ToyBackend().open([0, 1]))
    )
    return controller


def outcome(accepted: int, depth: int, times: StageTimes | None = None) -> Outcome:
    """A chain of this depth, of which so many tokens were accepted."""
    tree = Tree(0)
    for node in range(depth):
        tree.add(node, 1, 0.5)
        tree.close(node)
    return Outcome(
        tree,
        tree,
        Verdict(tuple(range(accepted + 1)), 2),
        SCORES,
        10,
        times or StageTimes(0.0, 1.0, 0.0),
    )


def test_fixed_never_changes() -> None:
    controller = begin(Fixed(7, 3, 2))
    controller.observe(outcome(0, 3))
    assert controller.budget() == Budget(7, 3, 2)


@pytest.mark.parametrize("options", [{"nodes": 0}, {"depth": 0}, {"width": 0}], ids=str)
def test_a_budget_of_nothing_is_plain_decoding(options: dict[str, int]) -> None:
    assert begin(Fixed(**options)).budget().within(99, 99) == NO_NODES
    assert Budget(5, 5, 5).within(9, 0) == NO_NODES
    assert Budget(5, 5, 5).within(2, 9) == Budget(2, 5, 5)


# ------------------------------------------------------------------------------------ heuristic
def test_heuristic_adds_two_and_takes_one() -> None:
    controller = begin(Heuristic(start=5, most=9))
    depths = [controller.budget().depth]
    for accepted, depth in [(5, 5), (7, 7), (9, 9), (3, 9), (0, 8), (7, 7)]:
        controller.observe(outcome(accepted, depth))
        depths.append(controller.budget().depth)
    assert depths == [5, 7, 9, 9, 8, 7, 9]


def test_heuristic_keeps_one_level_and_ignores_plain_rounds() -> None:
    controller = begin(Heuristic(start=2))
    for _ in range(5):
        controller.observe(outcome(0, 2))
    assert controller.budget().depth == 1
    controller.observe(outcome(0, 0))
    assert controller.budget().depth == 1
    controller.reset(RequestContext([0], Sampler(Sampling(), [0]), ToyBackend().open([])))
    assert controller.budget().depth == 2


# ------------------------------------------------------------------------------------------ ema
def test_ema_goes_just_above_the_average() -> None:
    controller = begin(Ema())
    assert controller.budget().depth == 3
    for _ in range(30):
        controller.observe(outcome(5, 9))
    assert controller.budget().depth == 6
    controller.observe(outcome(5, 5))  # accepted to the end: it would have gone on
    assert controller.average_ == pytest.approx(5.5, abs=0.05)


def test_ema_rises_faster_than_it_falls() -> None:
    up = begin(Ema())
    down = begin(Ema())
    up.observe(outcome(3, 9))
    down.observe(outcome(1, 9))
    assert up.average_ - 2.0 == pytest.approx(0.5)
    assert 2.0 - down.average_ == pytest.approx(0.2)


def test_ema_stops_and_probes() -> None:
    controller = begin(Ema(probe=4, floor=0.25))
    for _ in range(12):
        controller.observe(outcome(0, 3))
    pattern = []
    for _ in range(15):
        budget = controller.budget()
        pattern.append(budget.nodes > 0)
        controller.observe(outcome(0, min(budget.depth, 2)))
    assert pattern == ([False] * 4 + [True]) * 3
    for _ in range(4):
        controller.observe(outcome(0, 0))
    controller.observe(outcome(2, 2))  # the probe found something: it goes on
    assert controller.budget().nodes > 0


def test_ema_is_capped() -> None:
    controller = begin(Ema(most=6))
    for _ in range(20):
        controller.observe(outcome(20, 20))
    assert controller.budget().depth == 6


# -------------------------------------------------------------------------------------- goodput
def simulate(
    cost: CostModel, draft: str, rounds: int = 60, **options: Any
) -> tuple[list[Outcome], Goodput]:
    """Rounds on a machine whose clock follows the curve itself."""
    time = [0.0]
    truth = CostModel(cost.rows, cost.contexts, [list(line) for line in cost.table])

    class Timed(ToyBackend):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            time[0] += truth.seconds(len(work[0].tree), work[0].session.length)
            return super().score(work, chunks)

    recipe = Recipe(DraftModel(model=ToyBackend(draft)), Best(), Match(), Goodput(**options))
    engine = Engine(Timed("target", context=4000), recipe, cost, now=lambda: time[0])
    found = list(
        itertools.islice(engine.rounds([0, 1, 2], Sampling(max_tokens=9000), KeyedRng(0)), rounds)
    )
    controller = engine.recipe.controller
    assert isinstance(controller, Goodput)
    return found, controller


def test_goodput_speculates_where_trees_are_free() -> None:
    found, _ = simulate(flat(), "target")
    sizes = [len(outcome.tree) - 1 for outcome in found]
    assert min(sizes) > 0
    assert np.mean(sizes[20:]) > 30  # nearly all it may
    assert np.mean([len(outcome.tokens) for outcome in found]) > 4


def test_goodput_keeps_no_nodes_where_a_row_costs_a_hundred_passes() -> None:
    for draft in ("target", "draft"):
        found, _ = simulate(STEEP, draft)
        assert [len(outcome.tree) for outcome in found] == [1] * len(found)


def test_goodput_does_not_draft_what_it_could_not_pay() -> None:
    found, _ = simulate(STEEP, "target")
    assert [len(outcome.grown) for outcome in found] == [1] * len(found)


def test_goodput_takes_the_free_part_of_a_staircase() -> None:
    stairs = CostModel([1, 8, 9, 1024], [0], [[1.0, 1.0, 50.0, 50.0]])
    found, _ = simulate(stairs, "target")
    sizes = [len(outcome.tree) for outcome in found[10:]]
    assert max(sizes) <= 8
    assert np.mean(sizes) > 5


def priced(table: list[float]) -> Callable[[list[float]], int]:
    """How many of these reaches goodput's first budget pays for, on a machine with this line of costs."""
    rows = list(range(1, len(table) + 1))
    budget = begin(Goodput(nodes=len(table) - 1), CostModel(rows, [0], [table])).budget()
    assert budget.price is not None
    assert (np.diff(budget.price) >= 0).all()

    def size(reaches: list[float]) -> int:
        tree = Tree(0)
        for token, reach in enumerate(reaches):
            tree.add(ROOT, token, reach)
        tree.reach[1:] = reaches
        return worth(tree, budget)

    return size


def test_prices_rise_with_the_staircase() -> None:
    size = priced([1.0, 1.2, 1.4, 1.6, 1.8])
    assert size([0.9, 0.5, 0.21, 0.19]) == 3
    assert size([0.19, 0.1]) == 0


def test_the_optimum_beyond_a_flat_stair_is_found() -> None:
    size = priced(
        [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    )  # the first node costs a token, the next five nothing
    assert size([0.5, 0.3, 0.1]) == 0
    assert size([0.5, 0.3, 0.1, 0.1, 0.1, 0.1]) == 6
    two = priced([1.0, 1.4, 1.4, 1.4, 2.2, 2.2, 2.2])
    assert two([0.5, 0.4, 0.4, 0.3, 0.3, 0.3]) == 6  # 2.2 - 1.2 beats 1.3 - 0.4
    assert two([0.5, 0.4, 0.4, 0.3, 0.2, 0.1]) == 3


def test_rows_that_a_device_checks_while_the_host_is_busy_are_free() -> None:
    class Waited(ToyOutput):
        host_wait = 0.4  # of the round's two seconds

    cost = CostModel([1, 2, 3, 4], [0], [[1.0, 1.5, 1.6, 1.9]])
    controller = begin(Goodput(nodes=3), cost)
    seen = outcome(1, 2, StageTimes(0.5, 1.5, 0.0))
    assert controller.budget().price is not None
    controller.observe(seen)
    before = controller.budget().price
    assert before is not None
    assert before[1] > 0
    controller.observe(replace(seen, scores=Waited(np.zeros((1, 3)))))
    assert controller.busy == pytest.approx(1.6)
    price = controller.budget().price
    assert price is not None
    assert price[:3].tolist() == [0.0, 0.0, 0.0]
    assert price[3] > 0


def rest_lengths(controller: Goodput, rounds: int, times: StageTimes) -> list[int]:
    """Lengths of the runs of plain rounds between fruitless tries."""
    lengths = []
    resting = 0
    for _ in range(rounds):
        if controller.budget().nodes:
            lengths += [resting] if resting else []
            resting = 0
            controller.observe(outcome(0, 3, times))
        else:
            resting += 1
            controller.observe(outcome(0, 0, StageTimes(0.0, 1.0, 0.0)))
    return lengths


def test_goodput_rests_after_fruitless_stretches_and_tries_again() -> None:
    controller = begin(Goodput(patience=12, pause=8, longest=32))
    # a token per round, and a twentieth of a pass of drafting for nothing
    fruitless = StageTimes(draft=0.05, verify=1.0)
    for _ in range(12):
        assert controller.budget().nodes
        controller.observe(outcome(0, 3, fruitless))
    assert controller.budget() == NO_NODES
    lengths = rest_lengths(controller, 250, fruitless)
    assert lengths == [
        8,
        16,
        *[32] * 6,
    ]  # with tries of four rounds in between: the first one had twelve


def test_goodput_probes_ever_more_seldom_where_nothing_pays() -> None:
    controller = begin(Goodput(probe=4))
    gaps = []
    since = 0
    for _ in range(200):
        since += 1
        probing = controller.budget().price is None
        if probing:
            gaps.append(since)
            since = 0
        controller.observe(outcome(0, 1 if probing else 0, StageTimes(0.0, 1.0)))
    assert gaps == [5, 9, 17, 33, 65, 65]


def test_goodput_forgives_when_a_try_succeeds() -> None:
    controller = begin(Goodput(patience=4, pause=8, longest=64))
    rest_lengths(controller, 100, StageTimes(draft=0.5, verify=1.0))
    assert controller.stats.pause == 64
    while not controller.budget().nodes:
        controller.observe(outcome(0, 0))
    for _ in range(8):
        controller.observe(outcome(3, 3, StageTimes(draft=0.1, verify=1.0)))
    assert controller.stats.pause == 8
    assert controller.budget().nodes


def test_goodput_goes_on_while_drafting_pays() -> None:
    controller = begin(Goodput())
    for _ in range(100):
        assert controller.budget().nodes
        controller.observe(outcome(2, 3, StageTimes(draft=0.5, verify=1.0)))


def test_goodput_prices_drafting_by_its_seconds() -> None:
    controller = begin(Goodput())
    assert controller.budget().draft == 0
    for _ in range(60):
        controller.observe(
            outcome(2, 3, StageTimes(draft=0.9, verify=1.0))
        )  # three expansions of 0.3 s
    rate = 3 / 1.9
    assert controller.budget().draft == pytest.approx(0.3 * rate, rel=0.05)


def test_goodput_refines_the_cost_curve() -> None:
    cost = flat()
    controller = begin(Goodput(), cost)
    for _ in range(50):
        controller.observe(outcome(2, 3, StageTimes(verify=2.0)))
    assert cost.seconds(4, 10) == pytest.approx(2.0, rel=0.1)
