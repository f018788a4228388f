"""A deadline per token: rounds that would be late are not drafted, whatever the load."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.arrivals import ArrivalRun, Doubling, Phase
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.specserve import PredictionError, SpecServe
from sapwood.core.protocols import PrefillChunk, TargetOutput, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.types import BatchLoad, SharedPass, StageTimes
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel
from sapwood.policies.best import Best
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.controller_rounds import begin, outcome
from tests.helpers.scheduler_harness import Stage, Timed, copy_of

# seconds: a few rows are nearly free, then each costs what it costs
KNEE = CostModel([1, 8, 256], [0], [[0.010, 0.012, 0.260]])
LOAD = Doubling(first=4.0, seconds=1.5, phases=4)


def line(per_row: float = 0.001) -> CostModel:
    """A pass that costs 10 ms and a millisecond a row."""
    rows = [1, 512]
    return CostModel(rows, [0], [[0.01 + per_row * (count - 1) for count in rows]])


def bound(deadline: float) -> SpecServe:
    """The controller at the start of a request."""
    made = begin(SpecServe(deadline=deadline), line())
    assert isinstance(made, SpecServe)
    made.shared.late.ratio = 1.0
    return made


# ------------------------------------------------------------------------------- the controller
def test_without_pressure_it_is_goodput() -> None:
    free, other = bound(10.0), begin(Goodput(), line())
    for trees in (1, 4):
        for made in (free, other):
            made.join(BatchLoad(trees=trees, rows=trees - 1))
        assert free.budget().nodes == other.budget().nodes > 4
        assert (free.budget().price == other.budget().price).all()


@pytest.mark.parametrize("deadline", [0.02, 0.04, 0.08])
def test_as_requests_arrive_the_trees_of_all_stay_within_the_deadline(deadline: float) -> None:
    made = bound(deadline)
    found = list[int]()
    for trees in (1, 2, 4, 8, 16, 32, 64, 128):
        made.join(BatchLoad(trees=trees, rows=trees - 1))
        nodes = [made.budget().nodes for _ in range(trees)]
        found.append(max(nodes))
        plain, whole = (line().seconds(trees + count, 0, trees) for count in (0, sum(nodes)))
        if plain <= deadline:
            assert whole <= deadline
            kept = trees
    assert found[0] > 4
    assert kept < 128
    # no tree could keep the deadline then: the most tokens per second count
    assert found[-1] == made.nodes


def test_rows_that_are_left_over_go_to_some_of_the_requests() -> None:
    made = bound(0.02)  # 11 rows
    made.join(BatchLoad(trees=4, rows=3))
    assert sorted(made.budget().nodes for _ in range(4)) == [1, 2, 2, 2]


def test_rows_of_prompts_are_taken_from_the_trees() -> None:
    made = bound(0.04)
    made.join(BatchLoad(trees=2, rows=1))
    assert made.budget().nodes in (14, 15)  # 31 rows in 40 ms, two of them roots
    made.join(BatchLoad(trees=2, rows=1 + 20))
    assert made.budget().nodes in (4, 5)
    made.join(BatchLoad(trees=2, rows=1 + 64))
    assert made.budget().nodes == 0


def test_last_trees_of_other_requests_are_not_rows_of_prompts() -> None:
    first = bound(0.04)
    second = first.fresh()  # another request of the same engine
    first.observe(outcome(1, 10, StageTimes(0.0, line().seconds(11, 10))))
    first.shared.late.ratio = 1.0
    second.join(BatchLoad(trees=2, rows=1 + 10))
    assert second.budget().nodes in (14, 15)
    first.close()
    second.join(BatchLoad(trees=2, rows=1 + 10))  # now they are those of another recipe
    assert second.budget().nodes in (9, 10)


def test_draft_seconds_of_all_requests_count() -> None:
    made = bound(0.04)
    made.observe(outcome(1, 1, StageTimes(0.005, 0.011)))  # the first includes prefill
    assert made.shared.draft == 0
    made.observe(outcome(1, 1, StageTimes(0.005, 0.011)))
    made.join(BatchLoad(trees=2, rows=1))
    made.shared.late.ratio = 1.0
    assert made.most_nodes() == pytest.approx((0.03 - 0.01) / made.cost.drift / 0.001 / 2, abs=1)


def test_late_passes_make_it_careful_and_quick_ones_only_slowly_bold() -> None:
    late = PredictionError(1.0)
    late.add(1.25)
    assert late.ratio == pytest.approx(1.2)
    late.add(1.0)
    assert late.ratio == pytest.approx(1.1992)
    late.add(100.0)
    assert late.ratio < 1.5
    made = bound(0.02)
    made.join(BatchLoad(trees=1))
    before = made.budget().nodes
    made.shared.late.ratio = 1.5
    assert 0 < made.budget().nodes < before


def test_a_shared_pass_is_compared_once_and_not_with_prompts_in_it() -> None:
    made = bound(0.02)
    late = SharedPass(2, 2, 0, 10, seconds=0.01375)  # a quarter over 11 ms
    told = replace(outcome(0, 0, StageTimes(0.0, late.seconds)), shared=late)
    for _ in range(3):
        made.observe(told)
    assert made.shared.late.ratio == pytest.approx(1.2)
    made.observe(replace(told, shared=replace(late, prefill=64)))
    assert made.shared.late.ratio == pytest.approx(1.2)


# ------------------------------------------------------------------------------- under load
@dataclass
class Uneven(Timed):
    """A toy whose passes are up to a tenth slower than its curve."""

    chance: random.Random = field(default_factory=lambda: random.Random(0), compare=False)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        before = self.time[0]
        found = super().score(work, chunks)
        self.time[0] += 0.1 * self.chance.random() * (self.time[0] - before)
        return found


def phases(controller: Fixed | Goodput) -> list[Phase]:
    """Arrivals that double, decoded with a draft model that is right half of the time."""
    recipe = Recipe(DraftModel(model=ToyBackend("near")), Best(stride=4), Match(), controller)
    target = Uneven("target", context=4096, curve=KNEE)
    stage = Stage(target, recipe, copy_of(KNEE))

    def sleep(seconds: float) -> None:
        target.time[0] += seconds

    prompts = [[one % 3, one // 3 % 3, one // 9 % 3] for one in range(27)]
    return ArrivalRun(stage.scheduler, LOAD, sleep).run(prompts, Sampling(max_tokens=24))


@pytest.fixture(scope="module")
def plain() -> list[Phase]:
    return phases(Fixed(nodes=0))


@pytest.fixture(scope="module")
def auto() -> list[Phase]:
    return phases(Goodput(nodes=31, depth=8, width=2))


@pytest.mark.parametrize("deadline", [0.013, 0.02])
def test_arrivals_double_and_the_deadline_holds_while_plain_decoding_holds_it(
    deadline: float, plain: list[Phase], auto: list[Phase]
) -> None:
    found = phases(SpecServe(nodes=31, depth=8, width=2, deadline=deadline))
    kept = [phase for phase, base in enumerate(plain) if base.p99 < deadline]
    assert 3 <= len(kept) < LOAD.phases, [base.p99 for base in plain]
    for phase in kept:
        assert found[phase].p99 < deadline
    for mine, theirs in zip(found, auto, strict=True):
        assert mine.tokens_per_second >= 0.95 * theirs.tokens_per_second
    assert found[0].nodes > 3  # it does speculate


def test_without_the_deadline_the_same_trees_are_late(
    plain: list[Phase], auto: list[Phase]
) -> None:
    kept = [phase for phase, base in enumerate(plain) if base.p99 < 0.013]
    assert any(auto[phase].p99 >= 0.013 for phase in kept)
