"""Load: speculation shrinks as requests come and returns as they go; one request is as if there were no scheduler."""

import numpy as np
import pytest

from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.ledger import Entry, Ledger, ledgers
from sapwood.controllers.smartspec import SmartSpec
from sapwood.cost import CostCurve
from sapwood.drafters.model import Model
from sapwood.engine import Decoding, Engine
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.protocols import Request, Setting
from sapwood.recipe import Recipe
from sapwood.records import Company, Draw, Joint
from sapwood.rng import Keyed
from sapwood.sampling import Sampler, Sampling
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from tests.crowds import Stage, Timed, alone, copy_of, heard, said

# rows are nearly free up to sixteen, then each costs what it costs: a small machine
KNEE = CostCurve([1, 16, 256], [0], [[1.0, 1.2, 14.0]])
LONG, SHORT = Sampling(max_tokens=120), Sampling(max_tokens=24)


def stage_of(recipe: Recipe, curve: CostCurve = KNEE, **options: object) -> Stage:
    """Toy requests whose passes take the seconds of a curve."""
    return Stage(Timed("target", context=4096, curve=curve), recipe, copy_of(curve), **options)


def text(number: int) -> list[int]:
    """A text of its own for each number below 27."""
    return [number % 3, number // 3 % 3, number // 9]


def auto() -> Recipe:
    """A draft model that agrees with the target most of the time, in trees priced by the machine."""
    return Recipe(Model(model=Toy("target")), Best(stride=4), Match(), Goodput(nodes=31, depth=8, width=2))


def test_one_request_is_as_if_there_were_no_scheduler() -> None:
    stage = stage_of(auto())
    ticket = stage.ask([0, 1, 2], LONG)
    stage.run()
    target = Timed("target", context=4096, curve=KNEE)
    engine, found, emitted = Engine(target, auto(), copy_of(KNEE), now=target.now), [], 0
    for outcome in engine.rounds([0, 1, 2], LONG, Keyed(0)):
        found.append(outcome)
        if (emitted := emitted + len(outcome.tokens)) >= LONG.max_tokens:
            break
    steps = heard(ticket)
    assert len(steps) == len(found)
    for step, outcome in zip(steps, found, strict=True):
        assert not isinstance(step, Exception)
        assert step.outcome.tree.tokens.tolist() == outcome.tree.tokens.tolist()
        assert step.outcome.tree.parents.tolist() == outcome.tree.parents.tolist()
        assert step.outcome.times.verify == pytest.approx(outcome.times.verify)  # the clocks began at other times


def test_speculation_shrinks_with_load_and_returns() -> None:
    stage = stage_of(auto())
    stage.ask([0, 1, 2], Sampling(max_tokens=1000))
    stage.run(50)
    quiet = stage.rounds[-30:]
    for token in range(15):
        stage.ask(text(token + 6), Sampling(max_tokens=60))
    stage.run(50)
    busy = [told for told in stage.rounds[-30:] if told.trees == 16]
    while stage.crowd.active > 1 or len(stage.crowd.waiting):
        stage.run(1)
    stage.run(30)
    calm = stage.rounds[-20:]
    each = [np.mean([told.nodes / told.trees for told in part]) for part in (quiet, busy, calm)]
    assert busy
    assert each[0] > 6
    assert each[1] < 1
    assert each[2] > 0.8 * each[0]
    # at every load no slower than plain decoding: a pass of so many requests emits so many tokens
    for part, trees in ((quiet, 1), (busy, 16)):
        pace = sum(told.tokens for told in part) / sum(told.seconds for told in part)
        assert pace >= 0.97 * trees / KNEE.seconds(trees, 0)


def test_one_request_finds_out_for_all_whether_drafting_pays() -> None:
    stage = stage_of(auto())
    for token in range(8):
        stage.ask(text(token), LONG)
    stage.run(4)
    first = [step.outcome.grown for ticket in stage.tickets for step in heard(ticket)[:1]]  # type: ignore[union-attr]
    later = [step.outcome.grown for ticket in stage.tickets for step in heard(ticket)[1:2]]  # type: ignore[union-attr]
    assert sum(bool(grown.expanded.any()) for grown in first) == 1
    assert sum(bool(grown.expanded.any()) for grown in later) == 8  # it does


def test_fixed_budgets_are_respected_under_load() -> None:
    recipe = Recipe(Model(model=Toy("draft")), Chain(), Match(), Fixed(4, 4, 1))
    stage = stage_of(recipe)
    for token in range(6):
        stage.ask(text(token), LONG)
    stage.run(20)
    assert {told.nodes / told.trees for told in stage.rounds if told.trees == 6} == {4.0}


def test_a_pass_stays_within_its_time() -> None:
    limit = 2.0
    for recipe in (auto(), Recipe(Model(model=Toy("target")), Chain(), Match(), Fixed(8, 8, 1))):
        stage = stage_of(recipe, slo=limit)
        for token in range(9):
            stage.ask(text(token) * 14, SHORT)
        stage.run()
        assert all(told.verify <= 1.1 * limit for told in stage.rounds if told.trees)
        assert max(told.verify for told in stage.rounds) <= 2.4  # the least rows of prompts, whatever they take
        for ticket in stage.tickets:
            assert said(ticket) == alone(Toy("target", context=4096), "plain", ticket.job.prompt, SHORT)


def test_smartspec_knows_how_many_there_are() -> None:
    controller = SmartSpec()
    cost = CostCurve([1, 16, 64], [0], [[1.0, 1.1, 3.0]])
    controller.bind(Setting(Toy(), cost, lambda _: Toy()))
    controller.reset(Request([0, 1], Sampler(Sampling(), [0, 1]), Toy().open([0])))
    lengths = []
    for trees in (1, 4, 8, 64, 1):
        controller.join(Company(trees, 0))
        lengths.append(controller.budget().depth)
    assert lengths[0] == lengths[-1] > lengths[1] > 0
    assert lengths[3] == 0


# ------------------------------------------------------------------------------------- the books
def test_a_shared_round_is_booked_once() -> None:
    stage = stage_of(auto())
    for token in range(8):
        stage.ask(text(token), Sampling(max_tokens=300))
    stage.run(30)
    [book] = stage.scheduler.books()
    assert not book.entries
    told = stage.rounds[-1]
    assert told.trees == 8
    pace = sum(one.tokens for one in stage.rounds[-20:]) / sum(one.seconds for one in stage.rounds[-20:])
    assert book.rate == pytest.approx(pace, rel=0.15)
    assert stage.cost.seconds(8 + told.nodes, 0, 8) == pytest.approx(KNEE.seconds(8 + told.nodes, 0), rel=0.1)


def test_two_recipes_of_one_pass_answer_for_their_own_trees() -> None:
    def ledger() -> Ledger:
        return Ledger(0.03, 24, 8, 512, 64)

    cost, joint = KNEE, Joint(trees=2, rows=12, reading=0, context=0, seconds=KNEE.seconds(12, 0))
    whole, first, second = ledger(), ledger(), ledger()
    good, bad = Entry(4, 5, 3, 0.1), Entry(1, 5, 3, 0.3)
    whole.entries = [good, bad]
    whole.settle(joint, cost)
    first.entries, second.entries = [good], [bad]
    first.settle(joint, cost, bad.tokens, bad.draft)
    second.settle(joint, cost, good.tokens, good.draft)
    assert first.plain > first.seconds
    assert second.plain < second.seconds
    assert whole.tokens == first.tokens + second.tokens


def test_a_rest_ends_when_the_crowd_leaves() -> None:
    book = Ledger(0.03, 4, 64, 512, 64)
    cost = CostCurve([1, 1024], [0], [[1.0, 1024.0]])
    for _ in range(4):
        book.entries = [Entry(1, 3, 1, 0.0)] * 8
        book.settle(Joint(8, 32, 0, 0, 32.0), cost)
    assert book.rest == 64
    book.meet(6, 1.0)
    assert book.rest == 64
    book.meet(4, 1.0)
    assert book.rest == 0


def test_the_rate_is_restated_at_another_load() -> None:
    book = Ledger(0.03, 400, 64, 512, 64)
    for _ in range(50):  # 8 requests, a pass of a second, two tokens each
        book.entries = [Entry(2, 3, 1, 0.0)] * 8
        book.settle(Joint(8, 32, 0, 0, 1.0), CostCurve([1, 1024], [0], [[1.0, 1.0]]))
    assert book.rate == pytest.approx(16.0)
    book.meet(1, 0.5)  # alone, plain decoding says two tokens a second: twice as fast is four
    assert book.rate == pytest.approx(4.0)


def test_books_inside_other_controllers_are_found() -> None:
    from sapwood.controllers.banditspec import BanditSpec

    recipe = Recipe(Model(model=Toy("target")), Best(), Match(), BanditSpec(arms=[Goodput(), Fixed(2, 2, 1)]))
    stage = stage_of(recipe)
    for token in range(3):
        stage.ask([token, 1], LONG)
    stage.run(10)
    engine = stage.crowd.answers[0].engine
    [book] = ledgers(engine.recipe.parts()[-1])
    assert not book.entries
    assert book.trees == 3
    stage.run()


# ---------------------------------------------------------------------------------------- the law
@pytest.mark.parametrize(("draws", "policy"), [(Draw.SWOR, Static(shape=[2, 1])), (Draw.SWOR, Chain())], ids=str)
def test_a_law_recipe_draws_the_same_in_company(draws: Draw, policy: object) -> None:
    """Noise is keyed by seed and position: the same trees, verdicts and tokens as alone, so the same law."""
    recipe = Recipe(Model(model=Toy("draft"), draws=draws), policy, Rrs(), Fixed(4, 3, 2))  # type: ignore[arg-type]
    sampling = [Sampling(temperature=1.0, max_tokens=40, seed=seed) for seed in range(6)]
    stage = stage_of(recipe)
    for seed, options in enumerate(sampling):
        stage.ask(text(seed), options)
        stage.run(2)
    stage.run()
    for ticket, options in zip(stage.tickets, sampling, strict=True):
        assert said(ticket) == alone(Toy("target", context=4096), recipe, ticket.job.prompt, options)


def test_a_request_that_was_put_aside_counts_what_it_said() -> None:
    sampling = Sampling(max_tokens=20, repetition_penalty=1.5, frequency_penalty=0.5, min_tokens=15, stop_ids=(1,))
    engine = Engine(Toy("target"), Recipe(Model(model=Toy("draft")), Chain(), Match(), Fixed(3, 3, 1)))
    whole = [token for outcome in engine.rounds([0, 1, 2], sampling, Keyed(0)) for token in outcome.tokens][:20]
    for said_before in (1, 5, 13):
        again = Decoding(engine, [0, 1, 2], sampling, Keyed(0), said=whole[:said_before])
        rest: list[int] = []
        while len(rest) + said_before < 20:
            [scores] = engine.target.score([again.draft()])
            rest += again.judge(scores).tokens
        assert [*whole[:said_before], *rest][:20] == whole
        again.close()
