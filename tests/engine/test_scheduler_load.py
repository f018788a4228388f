"""Load: speculation shrinks as requests come and returns as they go; one request is as if there were no scheduler."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.smartspec import SmartSpec
from sapwood.controllers.throughput_stats import RoundShare, ThroughputStats, stats_of
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.types import BatchLoad, Draw, SharedPass
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from tests.helpers.scheduler_harness import Stage, Timed, alone, copy_of, tokens_of

# rows are nearly free up to sixteen, then each costs what it costs: a small machine
KNEE = CostModel([1, 16, 256], [0], [[1.0, 1.2, 14.0]])
LONG = Sampling(max_tokens=120)
SHORT = Sampling(max_tokens=24)


def stage_of(recipe: Recipe, curve: CostModel = KNEE, **options: object) -> Stage:
    """Toy requests whose passes take the seconds of a curve."""
    return Stage(Timed("target", context=4096, curve=curve), recipe, copy_of(curve), **options)


def text(number: int) -> list[int]:
    """A text of its own for each number below 27."""
    return [number % 3, number // 3 % 3, number // 9]


def auto() -> Recipe:
    """A draft model that agrees with the target most of the time, in trees priced by the machine."""
    return Recipe(
        DraftModel(model=ToyBackend("target")),
        Best(stride=4),
        Match(),
        Goodput(nodes=31, depth=8, width=2),
    )


def test_one_request_is_as_if_there_were_no_scheduler() -> None:
    stage = stage_of(auto())
    request = stage.ask([0, 1, 2], LONG)
    stage.run()
    target = Timed("target", context=4096, curve=KNEE)
    engine = Engine(target, auto(), copy_of(KNEE), now=target.now)
    found = []
    emitted = 0
    for outcome in engine.rounds([0, 1, 2], LONG, KeyedRng(0)):
        found.append(outcome)
        if (emitted := emitted + len(outcome.tokens)) >= LONG.max_tokens:
            break
    steps = stage.steps[request]
    assert len(steps) == len(found)
    for step, outcome in zip(steps, found, strict=True):
        assert not isinstance(step, Exception)
        assert step.outcome.tree.tokens.tolist() == outcome.tree.tokens.tolist()
        assert step.outcome.tree.parents.tolist() == outcome.tree.parents.tolist()
        assert step.outcome.times.verify == pytest.approx(
            outcome.times.verify
        )  # the clocks began at other times


def test_speculation_shrinks_with_load_and_returns() -> None:
    stage = stage_of(auto())
    stage.ask([0, 1, 2], Sampling(max_tokens=1000))
    stage.run(50)
    quiet = stage.rounds[-30:]
    for token in range(15):
        stage.ask(text(token + 6), Sampling(max_tokens=90))
    stage.run(50)
    busy = [told for told in stage.rounds[-50:] if told.trees == 16]
    while stage.pool.active > 1 or len(stage.pool.waiting):
        stage.run(1)
    stage.run(30)
    calm = stage.rounds[-20:]
    each = [np.mean([told.nodes / told.trees for told in part]) for part in (quiet, busy, calm)]
    assert busy
    assert each[0] > 6
    assert each[1] < 0.8 * each[0]
    assert each[2] > 0.7 * each[0]
    # at every load no slower than plain decoding: a pass of so many requests emits so many tokens
    for part, trees in ((quiet, 1), (busy, 16)):
        pace = sum(told.tokens for told in part) / sum(told.seconds for told in part)
        assert pace >= 0.97 * trees / KNEE.seconds(trees, 0)


def test_one_request_finds_out_for_all_whether_drafting_pays() -> None:
    stage = stage_of(auto())
    for token in range(8):
        stage.ask(text(token), LONG)
    [pause] = {stats.first_pause for stats in stage.scheduler.throughput()} or {8}
    stage.run(4 + pause)
    first = [step.outcome.grown for request in stage.requests for step in stage.steps[request][:1]]  # type: ignore[union-attr]
    later = [
        step.outcome.grown  # type: ignore[union-attr]
        for request in stage.requests
        for step in stage.steps[request][1 + pause : 2 + pause]
    ]
    assert sum(bool(grown.expanded.any()) for grown in first) == 1
    assert sum(bool(grown.expanded.any()) for grown in later) == 8  # it does


def test_fixed_budgets_are_respected_under_load() -> None:
    recipe = Recipe(DraftModel(model=ToyBackend("draft")), Chain(), Match(), Fixed(4, 4, 1))
    stage = stage_of(recipe)
    for token in range(6):
        stage.ask(text(token), LONG)
    stage.run(20)
    assert {told.nodes / told.trees for told in stage.rounds if told.trees == 6} == {4.0}


def test_a_pass_stays_within_its_time() -> None:
    limit = 2.0
    for recipe in (
        auto(),
        Recipe(DraftModel(model=ToyBackend("target")), Chain(), Match(), Fixed(8, 8, 1)),
    ):
        stage = stage_of(recipe, slo=limit)
        for token in range(9):
            stage.ask(text(token) * 14, SHORT)
        stage.run()
        assert all(told.verify <= 1.1 * limit for told in stage.rounds if told.trees)
        assert (
            max(told.verify for told in stage.rounds) <= 2.4
        )  # the least rows of prompts, whatever they take
        for request in stage.requests:
            assert tokens_of(stage.steps[request]) == alone(
                ToyBackend("target", context=4096), "plain", request.prompt, SHORT
            )


def test_smartspec_knows_how_many_there_are() -> None:
    controller = SmartSpec()
    cost = CostModel([1, 16, 64], [0], [[1.0, 1.1, 3.0]])
    controller.bind(EngineContext(ToyBackend(), cost, lambda _: ToyBackend()))
    controller.reset(RequestContext([0, 1], Sampler(Sampling(), [0, 1]), ToyBackend().open([0])))
    lengths = []
    for trees in (1, 4, 8, 64, 1):
        controller.join(BatchLoad(trees, 0))
        lengths.append(controller.budget().depth)
    assert lengths[0] == lengths[-1] > lengths[1] > 0
    assert lengths[3] == 0


# ------------------------------------------------------------------------------------- the books
def test_a_shared_round_is_booked_once() -> None:
    stage = stage_of(auto())
    for token in range(8):
        stage.ask(text(token), Sampling(max_tokens=300))
    stage.run(30)
    [stats] = stage.scheduler.throughput()
    assert not stats.entries
    told = stage.rounds[-1]
    assert told.trees == 8
    pace = sum(one.tokens for one in stage.rounds[-20:]) / sum(
        one.seconds for one in stage.rounds[-20:]
    )
    assert stats.rate == pytest.approx(pace, rel=0.15)
    assert stage.cost.seconds(8 + told.nodes, 0, 8) == pytest.approx(
        KNEE.seconds(8 + told.nodes, 0), rel=0.1
    )


def test_two_recipes_of_one_pass_answer_for_their_own_trees() -> None:
    def new_stats() -> ThroughputStats:
        return ThroughputStats(0.03, 24, 8, 512, 64)

    cost = KNEE
    shared = SharedPass(trees=2, rows=12, prefill=0, context=0, seconds=KNEE.seconds(12, 0))
    whole = new_stats()
    first = new_stats()
    second = new_stats()
    good = RoundShare(4, 5, 3, 0.1)
    bad = RoundShare(1, 5, 3, 0.3)
    whole.entries = [good, bad]
    whole.settle(shared, cost)
    first.entries = [good]
    second.entries = [bad]
    first.settle(shared, cost, bad.tokens, bad.draft)
    second.settle(shared, cost, good.tokens, good.draft)
    assert first.plain > first.seconds
    assert second.plain < second.seconds
    assert whole.tokens == first.tokens + second.tokens


def test_a_rest_ends_when_fewer_requests_share_the_pass() -> None:
    stats = ThroughputStats(0.03, 4, 64, 512, 64)
    cost = CostModel([1, 1024], [0], [[1.0, 1024.0]])
    for _ in range(4):
        stats.entries = [RoundShare(1, 3, 1, 0.0)] * 8
        stats.settle(SharedPass(8, 32, 0, 0, 32.0), cost)
    assert stats.rest == 64
    stats.set_load(6, 1.0)
    assert stats.rest == 64
    stats.set_load(4, 1.0)
    assert stats.rest == 0


def test_the_rate_is_restated_at_another_load() -> None:
    stats = ThroughputStats(0.03, 400, 64, 512, 64)
    for _ in range(50):  # 8 requests, a pass of a second, two tokens each
        stats.entries = [RoundShare(2, 3, 1, 0.0)] * 8
        stats.settle(SharedPass(8, 32, 0, 0, 1.0), CostModel([1, 1024], [0], [[1.0, 1.0]]))
    assert stats.rate == pytest.approx(16.0)
    stats.set_load(1, 0.5)  # alone, plain decoding emits two tokens a second: twice as fast is four
    assert stats.rate == pytest.approx(4.0)


def test_stats_inside_other_controllers_are_found() -> None:
    from sapwood.controllers.banditspec import BanditSpec

    recipe = Recipe(
        DraftModel(model=ToyBackend("target")),
        Best(),
        Match(),
        BanditSpec(arms=[Goodput(), Fixed(2, 2, 1)]),
    )
    stage = stage_of(recipe)
    for token in range(3):
        stage.ask([token, 1], LONG)
    stage.run(10)
    engine = stage.pool.running[0].engine
    [stats] = stats_of(engine.recipe.parts()[-1])
    assert not stats.entries
    assert stats.trees == 3
    stage.run()


# ---------------------------------------------------------------------------------------- the law
@pytest.mark.parametrize(
    ("draws", "policy"), [(Draw.SWOR, Static(shape=[2, 1])), (Draw.SWOR, Chain())], ids=str
)
def test_a_law_recipe_draws_the_same_in_company(draws: Draw, policy: object) -> None:
    """Noise is keyed by seed and position: the same trees, verdicts and tokens as alone, so the same law."""
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=draws),
        policy,  # type: ignore[arg-type]
        Rrs(),
        Fixed(4, 3, 2),
    )
    sampling = [Sampling(temperature=1.0, max_tokens=40, seed=seed) for seed in range(6)]
    stage = stage_of(recipe)
    for seed, options in enumerate(sampling):
        stage.ask(text(seed), options)
        stage.run(2)
    stage.run()
    for request, options in zip(stage.requests, sampling, strict=True):
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", context=4096), recipe, request.prompt, options
        )


def test_a_request_that_was_put_aside_counts_what_it_said() -> None:
    sampling = Sampling(
        max_tokens=20, repetition_penalty=1.5, frequency_penalty=0.5, min_tokens=15, stop_ids=(1,)
    )
    engine = Engine(
        ToyBackend("target"),
        Recipe(DraftModel(model=ToyBackend("draft")), Chain(), Match(), Fixed(3, 3, 1)),
    )
    whole = [
        token
        for outcome in engine.rounds([0, 1, 2], sampling, KeyedRng(0))
        for token in outcome.tokens
    ][:20]
    for said_before in (1, 5, 13):
        again = RequestDecoder(
            engine, [0, 1, 2], sampling, KeyedRng(0), emitted=whole[:said_before]
        )
        rest: list[int] = []
        while len(rest) + said_before < 20:
            [scores] = engine.target.score([again.draft()])
            rest += again.finish_round(scores).tokens
        assert [*whole[:said_before], *rest][:20] == whole
        again.close()


def test_each_tree_of_a_shared_pass_is_booked_the_seconds_of_the_pass() -> None:
    stage = stage_of(auto(), CostModel([1, 1024], [0], [[1.0, 1.0]]))
    found = []

    def watch(_: Request, step: Step) -> None:
        found.append(step.outcome)
        stage.target.time[0] += 0.5  # type: ignore[attr-defined] # what the client does with it

    stage.scheduler.watch = watch
    for number in range(3):
        stage.ask(text(number), SHORT)
    stage.run()
    shared = [one for one in found if one.shared is not None and len(one.tree) > 1]
    assert len(shared) > 3
    # no tree has waited for the clients of the others
    assert all(one.times.verify == one.shared.seconds == 1.0 for one in shared if one.shared)
