"""A deadline per token: rounds that would be late are not drafted, whatever the load."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from benchmarks.arrivals import ArrivalRun, Doubling, Phase

from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.specserve import PredictionError, SpecServe
from sapwood.core.protocols import PrefillChunk, RequestContext, TargetOutput, TreeInput
from sapwood.core.sampling import Sampler, Sampling
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
DEADLINE = 0.014
LOAD = Doubling(first=4.0, seconds=1.5, phases=4)


def line() -> CostModel:
    """A pass that costs 10 ms and a millisecond a row."""
    rows = [1, 512]
    return CostModel(rows, [0], [[0.01 + 0.001 * (count - 1) for count in rows]])


class Clock:
    """Seconds that a test sets."""

    time = 100.0

    def __call__(self) -> float:
        return self.time


def bound(deadline: float, clock: Clock | None = None) -> SpecServe:
    """The controller of a request that has its first token, without an error of predictions."""
    made = begin(SpecServe(deadline=deadline), line())
    assert isinstance(made, SpecServe)
    made.now = clock or Clock()
    made.observe(outcome(0, 0, StageTimes(0.0, line().seconds(1, 10))))
    made.shared.late.ratio = 1.0
    return made


def another(first: SpecServe) -> SpecServe:
    """Another request of the same engine, which has its first token too."""
    made = first.fresh()
    sampler = Sampler(Sampling(), [0, 1])
    made.reset(RequestContext([0, 1], sampler, ToyBackend().open([0])))
    made.observe(outcome(0, 0, StageTimes(0.0, line().seconds(1, 10))))
    made.shared.late.ratio = 1.0
    return made


# ------------------------------------------------------------------------------- the controller
def test_before_its_first_token_and_without_pressure_it_is_goodput() -> None:
    free, other = bound(10.0), begin(Goodput(), line())
    other.observe(outcome(0, 0, StageTimes(0.0, line().seconds(1, 10))))
    for trees in (1, 4):
        for made in (free, other):
            made.join(BatchLoad(trees=trees, rows=trees - 1))
        assert free.budget().nodes == other.budget().nodes > 4
        assert (free.budget().price == other.budget().price).all()
    new = begin(SpecServe(deadline=1e-6), line())
    assert new.budget().nodes == new.nodes


@pytest.mark.parametrize("deadline", [0.02, 0.04, 0.08])
def test_as_requests_arrive_the_trees_of_all_stay_within_the_deadline(deadline: float) -> None:
    made = bound(deadline)
    found = list[int]()
    for trees in (1, 2, 4, 8, 16, 32, 64, 72):
        made.join(BatchLoad(trees=trees, rows=trees - 1))
        nodes = [made.budget().nodes for _ in range(trees)]
        found.append(max(nodes))
        plain, whole = (line().seconds(trees + count, 0, trees) for count in (0, sum(nodes)))
        if plain < deadline:
            assert whole <= deadline
            kept = trees
    assert found[0] > 4
    assert kept < 72
    # no tree could keep the deadline then: the most tokens per second count
    assert found[-1] == made.nodes


def test_tokens_that_came_early_leave_room_and_late_ones_take_it() -> None:
    clock = Clock()
    made = bound(0.0205, clock)
    assert made.budget().nodes == 10  # 11 rows in 20.5 ms
    clock.time += 0.02
    made.observe(outcome(3, 3, StageTimes(0.0, line().seconds(4, 10))))  # four tokens, 82 ms
    made.shared.late.ratio = 1.0
    assert made.budget().nodes == made.nodes
    clock.time += 0.062  # 20.5 ms are left
    assert made.budget().nodes == 10
    clock.time += 0.005
    assert made.budget().nodes == 5
    clock.time += 0.02  # the token is late in any case
    assert made.budget().nodes == made.nodes


def test_the_request_that_is_due_first_bounds_the_trees_of_all() -> None:
    clock = Clock()
    first = bound(0.04, clock)
    clock.time += 0.015
    second = another(first)
    for made in (first, second):
        made.join(BatchLoad(trees=2, rows=1))
        assert made.budget().nodes == 7  # 25 ms are left to the first: 16 rows, two of them roots
    first.close()
    second.join(BatchLoad(trees=1))
    assert second.budget().nodes == 30


def test_rows_that_are_left_over_go_to_some_of_the_requests() -> None:
    made = bound(0.0205)  # 11 rows
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
    second = another(first)
    first.due_.nodes = 10
    second.join(BatchLoad(trees=2, rows=1 + 10))
    assert second.budget().nodes in (14, 15)
    first.close()
    second.join(BatchLoad(trees=2, rows=1 + 10))  # now they are those of another recipe
    assert second.budget().nodes in (9, 10)


def test_a_tree_has_as_many_nodes_as_are_below_its_root() -> None:
    made = bound(0.04)
    made.observe(outcome(2, 5, StageTimes(0.0, line().seconds(6, 10))))
    assert made.due_.nodes == 5


def test_draft_seconds_of_all_requests_count() -> None:
    made = begin(SpecServe(deadline=0.04), line())
    made.now = Clock()
    made.observe(outcome(1, 1, StageTimes(0.005, 0.011)))  # the first includes prefill
    assert made.shared.draft == 0
    made.observe(outcome(0, 1, StageTimes(0.005, 0.011)))
    assert made.shared.draft == 0.005
    made.due_.at = made.now() + 0.04
    made.join(BatchLoad(trees=2, rows=1))
    made.shared.late.ratio = 1.0
    assert made.most_nodes() == 9  # 30 ms: 21 rows, two of them roots


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


class PartlyRight(ToyBackend):
    """A draft model that is right about texts that begin with 0 or 1, and wrong about others."""

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        rows = [probs_after("target", self.vocab, context) for context in contexts]
        wrong = [
            np.roll(row, 1) if context[0] == 2 else row
            for row, context in zip(rows, contexts, strict=True)
        ]
        return ToyOutput(np.log(wrong))


def phases(
    controller: Fixed | Goodput, load: Doubling = LOAD, draft: ToyBackend | None = None
) -> list[Phase]:
    """Arrivals that double, decoded with a draft model that is right half of the time."""
    drafter = DraftModel(model=draft or ToyBackend("near"))
    recipe = Recipe(drafter, Best(stride=4), Match(), controller)
    target = Uneven("target", context=4096, curve=KNEE)
    stage = Stage(target, recipe, copy_of(KNEE))

    def sleep(seconds: float) -> None:
        target.time[0] += seconds

    prompts = [[one % 3, one // 3 % 3, one // 9 % 3] for one in range(27)]
    return ArrivalRun(stage.scheduler, load, sleep, prompts, Sampling(max_tokens=24)).run()


@pytest.fixture(scope="module")
def plain() -> list[Phase]:
    return phases(Fixed(nodes=0))


@pytest.fixture(scope="module")
def auto() -> list[Phase]:
    return phases(Goodput(nodes=31, depth=8, width=2))


@pytest.mark.parametrize("deadline", [0.0125, 0.02])
def test_arrivals_double_and_the_deadline_holds_while_plain_decoding_holds_it(
    deadline: float, plain: list[Phase], auto: list[Phase]
) -> None:
    found = phases(SpecServe(nodes=31, depth=8, width=2, deadline=deadline))
    kept = [phase for phase, base in enumerate(plain) if base.per_token < deadline]
    assert 3 <= len(kept) < LOAD.phases, [base.per_token for base in plain]
    for phase in kept:
        assert found[phase].per_token < deadline
    for mine, theirs in zip(found, auto, strict=True):
        assert mine.tokens_per_second >= 0.95 * theirs.tokens_per_second
    assert found[0].nodes > 3  # it does speculate


@pytest.mark.parametrize("draft", [ToyBackend("near"), PartlyRight()], ids=["near", "partly"])
def test_a_deadline_that_never_binds_changes_no_round(draft: ToyBackend) -> None:
    found = phases(SpecServe(nodes=31, depth=8, width=2, deadline=10.0), draft=draft)
    assert found == phases(Goodput(nodes=31, depth=8, width=2), draft=draft)


def test_a_request_whose_drafts_are_refused_meets_the_deadline_that_auto_misses() -> None:
    load = Doubling(first=24.0, seconds=2.0, phases=1)
    [plain], [auto], [found] = (
        phases(controller, load, PartlyRight())
        for controller in (
            Fixed(nodes=0),
            Goodput(nodes=31, depth=8, width=2),
            SpecServe(nodes=31, depth=8, width=2, deadline=DEADLINE),
        )
    )
    assert plain.per_token < DEADLINE < auto.per_token
    assert found.per_token < DEADLINE
    assert found.tokens_per_second >= 0.95 * auto.tokens_per_second
