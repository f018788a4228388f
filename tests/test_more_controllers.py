"""Bandits, experts and lengths by goodput: what they choose, and what they must not be misled by."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy, ToyScores
from sapwood.controllers.banditspec import BanditSpec
from sapwood.controllers.banditspec import Reward as Pay
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.posterior import Posterior
from sapwood.controllers.smartspec import SmartSpec
from sapwood.cost import CostCurve, flat
from sapwood.drafters.hedge import Hedge
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.engine import Engine, no_loader
from sapwood.errors import SapwoodError, Unsound
from sapwood.learners import ARM, Choice, Exp3, Gaussian, NormalHedge, Rule, Ucb, normal_scale
from sapwood.part import Part
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.policies.svip import Svip
from sapwood.policies.tapout import Reward, TapOut
from sapwood.protocols import Drafter, Request, Setting, Work
from sapwood.recipe import Recipe
from sapwood.records import Budget, Draw, Outcome, Prune, Times, Verdict
from sapwood.rng import Keyed, Place, Rng
from sapwood.sampling import Sampler, Sampling, softmax
from sapwood.testing import law_error
from sapwood.testing.exact import outcomes
from sapwood.tree import Tree
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative

SCORES = ToyScores(np.zeros((1, 3)))
HERE = Place(7, ARM)
PROMPT = [0, 1, 2]
STEEP = CostCurve([1, 2, 1024], [0], [[1.0, 100.0, 100.0]])  # a second row costs a hundred passes


def begin(part: Any, cost: CostCurve | None = None, max_tokens: int = 10_000) -> Any:
    """A part at the start of a request."""
    part.bind(Setting(Toy(), cost or flat(), no_loader))
    sampler = Sampler(Sampling(max_tokens=max_tokens), PROMPT)
    part.reset(Request(PROMPT, sampler, Toy().open(PROMPT[:-1])))
    return part


def outcome(accepted: int, depth: int, times: Times | None = None, context: int = 10) -> Outcome:
    """A chain of this depth, of which so many tokens were accepted."""
    tree = Tree(0)
    for node in range(depth):
        tree.add(node, 1, 0.5)
        tree.close(node)
    verdict = Verdict(tuple(range(accepted + 1)), 2)
    return Outcome(tree, tree, verdict, SCORES, context, times or Times(0.0, 1.0, 0.0), asked=depth > 0)


# ------------------------------------------------------------------------------------- learners
@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=30, max_size=30), st.integers(2, 5), st.sampled_from([1.0, 0.9]))
def test_ucb_is_the_textbook_rule(rewards: list[float], arms: int, fade: float) -> None:
    bandit, history = Ucb(arms, fade), list[tuple[int, float]]()
    for reward in rewards:
        choice = bandit.choose(Keyed(0), HERE)
        age = {at: fade ** (len(history) - 1 - at) for at in range(len(history))}
        index = []
        for arm in range(arms):
            mine = [(age[at], got) for at, (played, got) in enumerate(history) if played == arm]
            count, total = sum(age.values()), sum(weight for weight, _ in mine)
            mean = sum(weight * got for weight, got in mine) / total if mine else 0.0
            index.append(mean + math.sqrt(2 * math.log(max(count, 1.0)) / total) if mine else math.inf)
        assert index[choice.arm] == pytest.approx(max(index))
        bandit.learn(choice, reward)
        history.append((choice.arm, reward))


def play(bandit: Any, rates: Sequence[float], rounds: int, seed: int = 1) -> list[int]:
    """Arms chosen against coins of these rates."""
    coins, arms = np.random.default_rng(seed), []
    for at in range(rounds):
        choice = bandit.choose(Keyed(3), Place(at, ARM))
        bandit.learn(choice, float(coins.random() < rates[choice.arm]))
        arms.append(choice.arm)
    return arms


def test_a_bonus_by_all_rounds_together_never_explores() -> None:
    class Public(Ucb):  # the released code: one bonus for all arms
        def choose(self, rng: Rng, place: Place) -> Choice:
            if (self.counts == 0).any():
                return super().choose(rng, place)
            return Choice(int(np.argmax(self.means + np.sqrt(6 * np.log(self.counts.sum()) / self.counts.sum()))))

    ours, theirs = Ucb(2), Public(2)
    for bandit in (ours, theirs):
        bandit.learn(Choice(0), 0.4)  # a lucky round of the worse arm
        bandit.learn(Choice(1), 0.0)  # an unlucky one of the better
    for bandit, best in ((ours, True), (theirs, False)):
        arms = []
        for at in range(200):
            choice = bandit.choose(Keyed(0), Place(at))
            bandit.learn(choice, (0.3, 0.8)[choice.arm])
            arms.append(choice.arm)
        assert (sum(arms[-50:]) > 40) is best


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_finds_the_best_arm(rule: Rule) -> None:
    arms = play(rule.make(3), (0.1, 0.9, 0.3), 800)
    assert arms[-200:].count(1) > 130


def test_a_fading_bandit_follows_a_change() -> None:
    steady, fading = Ucb(2), Ucb(2, fade=0.98)
    for bandit in (steady, fading):
        play(bandit, (0.9, 0.5), 1000)
    assert play(fading, (0.1, 0.5), 150).count(1) > play(steady, (0.1, 0.5), 150).count(1) + 40


def test_exp3_draws_by_its_law_and_charges_what_is_right_on_average() -> None:
    bandit, losses = Exp3(3), np.array((0.9, 0.2, 0.5))
    bandit.losses, bandit.rounds = np.array((4.0, 1.0, 2.5)), 5
    rate = math.sqrt(math.log(3) / (3 * 6))
    weights = [math.exp(-rate * loss) for loss in (4.0, 1.0, 2.5)]
    assert bandit.law() == pytest.approx([weight / sum(weights) for weight in weights])
    charged, unweighted = np.zeros(3), np.zeros(3)
    for chance, choice in outcomes(lambda rng: bandit.choose(rng, HERE)):
        assert choice.chance == pytest.approx(chance)
        after = Exp3(3)
        after.learn(choice, 1.0 - losses[choice.arm])
        charged += chance * after.losses
        unweighted[choice.arm] += chance * losses[choice.arm]
    assert charged == pytest.approx(losses)
    assert np.abs(unweighted - losses).max() > 0.1  # without the chance the seldom drawn arms look good


def test_thompson_draws_are_of_their_place_and_narrow_with_trials() -> None:
    few, many = Gaussian(2), Gaussian(2)
    few.counts, few.sums = np.array((2.0, 2.0)), np.array((1.2, 0.8))
    many.counts, many.sums = 1000 * few.counts, 1000 * few.sums
    chosen = [[bandit.choose(Keyed(0), Place(at, ARM)).arm for at in range(200)] for bandit in (few, many)]
    assert 20 < chosen[0].count(1) < 100  # the worse arm is still tried
    assert chosen[1].count(1) == 0
    assert chosen[0] == [few.choose(Keyed(0), Place(at, ARM)).arm for at in range(200)]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_normal_hedge_solves_for_its_scale(regrets: list[float]) -> None:
    hedge = NormalHedge(len(regrets))
    hedge.regrets = np.array(regrets)
    good = np.maximum(hedge.regrets, 0)
    weights = hedge.weights()
    assert weights.sum() == pytest.approx(1)
    if not good.any():
        assert weights == pytest.approx(1 / len(regrets))
        return
    good /= good.max()
    scale = normal_scale(good.tolist())
    assert np.mean(np.exp(good**2 / (2 * scale))) == pytest.approx(math.e, rel=1e-6)
    expected = good / scale * np.exp(good**2 / (2 * scale))
    assert weights == pytest.approx(expected / expected.sum())
    assert (weights[good == 0] == 0).all()


def test_normal_hedge_follows_the_best_expert() -> None:
    random, hedge = np.random.default_rng(0), NormalHedge(4)
    mixed = np.zeros(4)
    for _ in range(500):
        losses = random.random(4) * (0.9, 0.7, 1.0, 0.95)
        mixed += float(hedge.weights() @ losses) - losses
        hedge.learn(losses)
    assert int(np.argmax(hedge.weights())) == 1
    assert mixed.max() < 3 * math.sqrt(500 * math.log(4)) / 2


# ----------------------------------------------------------------------------------- banditspec
class Timed(Toy):
    """A target whose passes take the seconds of a curve, on a clock of their own."""

    def score(self, work: Any, chunks: Any = ()) -> Any:
        """Let the clock go on."""
        clock[0] += curve[0].seconds(len(work[0].tree), 0)
        return super().score(work, chunks)


clock, curve = [0.0], [flat()]


def depths(controller: Any, cost: CostCurve, draft: str, rounds: int) -> list[int]:
    """Chain lengths that a controller asks for on a machine of this cost; drafting is free."""
    clock[0], curve[0] = 0.0, CostCurve(cost.rows, cost.contexts, [list(line) for line in cost.table])
    recipe = Recipe(Model(model=Toy(draft)), Chain(), Match(), controller)
    engine = Engine(Timed("target", context=20_000), recipe, cost, now=lambda: clock[0])
    steps = itertools.islice(engine.rounds(PROMPT, Sampling(max_tokens=19_000), Keyed(0)), rounds)
    return [step.tree.height for step in steps]


STAIRS = CostCurve([1, 3, 4, 1024], [0], [[1.0, 1.0, 4.0, 4.0]])  # three rows cost what one does, four much more


def test_banditspec_tries_each_arm_and_finds_the_fastest() -> None:
    found = depths(BanditSpec(), STAIRS, "target", 400)  # the first round of a request has read the prompt
    assert found[:5] == [1, 1, 2, 3, 4]
    assert found[-100:].count(2) > 60


def test_by_tokens_alone_the_longest_draft_wins_whatever_it_costs() -> None:
    found = depths(BanditSpec(reward=Pay.TOKENS), STAIRS, "target", 400)
    assert found[-100:].count(4) > 60


def test_exp3_leans_toward_the_fastest() -> None:
    found = depths(BanditSpec(bandit=Rule.EXP3), STAIRS, "target", 600)
    counts = [found[-300:].count(depth) for depth in (1, 2, 3, 4)]
    assert counts[1] == max(counts)
    assert counts[1] > 2 * counts[3]


def test_drafting_nothing_can_be_an_arm() -> None:
    arms: list[Any] = [Fixed(0, 0, 0), Fixed(2, 2, 1)]
    assert depths(BanditSpec(arms=arms), STEEP, "target", 200)[-50:].count(0) > 40
    assert depths(BanditSpec(arms=arms), flat(), "target", 200)[-50:].count(0) < 10


def test_rounds_that_say_nothing_about_an_arm_do_not_teach() -> None:
    controller = begin(BanditSpec(reward=Pay.TOKENS), max_tokens=5)
    assert controller.budget() == Budget(1, 1, 1)
    controller.observe(outcome(0, 0))  # the drafter had nothing
    assert controller.learner.counts.sum() == 0
    controller.budget()
    controller.observe(outcome(1, 1))
    assert controller.learner.counts.tolist() == [1, 0, 0, 0]
    controller.sampler_.commit([1, 1, 1])
    assert controller.budget().depth == 2  # but a single token is left to draft
    controller.observe(outcome(1, 1))
    assert controller.learner.counts.tolist() == [1, 0, 0, 0]


def test_a_reward_goes_to_the_arm_that_was_played_however_late_it_comes() -> None:
    controller = begin(BanditSpec(reward=Pay.TOKENS))
    assert [controller.budget().depth for _ in range(2)] == [1, 1]  # the second before the first was observed
    controller.observe(outcome(1, 1))
    assert controller.budget().depth == 2
    controller.observe(outcome(0, 1))
    controller.observe(outcome(2, 2))
    assert controller.learner.counts.tolist() == [2, 1, 0, 0]
    assert controller.learner.sums.tolist() == pytest.approx([2 / 5 + 1 / 5, 3 / 5, 0, 0])


# --------------------------------------------------------------------------------------- tapout
def test_tapout_says_what_its_arms_do() -> None:
    assert TapOut(policies=[Chain(), Static()]).prunes is Prune.GROUPS
    assert TapOut(policies=[Chain(), Beam()]).prunes is Prune.NODES
    assert not TapOut(policies=[Chain(), Static()]).reads_laws
    assert TapOut(policies=[Chain(), Svip()]).reads_laws
    with pytest.raises(SapwoodError, match="at least one policy"):
        TapOut(policies=[])
    with pytest.raises(Unsound, match="cuts single nodes"):
        Recipe(Model(draws=Draw.IID), TapOut(policies=[Chain(), Beam()]), Speculative(), Fixed())


def rewarded(policy: TapOut, *rounds: tuple[int, int, Times | None]) -> list[float]:
    """Mean rewards by arm after chains with so many (accepted, drafted) tokens; the longest draft is 8."""
    begin(policy)
    for accepted, drafted, times in rounds:
        policy.frontier(Tree(0), Budget(8, 8, 1))
        policy.observe(outcome(accepted, drafted, times))
    means: list[float] = policy.learner.means.tolist()  # type: ignore[attr-defined]
    return means


def test_the_blend_is_the_papers_and_likes_a_single_sure_token() -> None:
    arms: list[Any] = [Chain(), Chain()]
    blend = rewarded(TapOut(policies=arms), (1, 1, None), (4, 8, None))
    assert blend == pytest.approx([0.5 * 1 / 8 + 0.5 * 1 / 1, 0.5 * 4 / 8 + 0.5 * 4 / 8])
    assert blend[0] > blend[1]  # one token a round beats four
    share = rewarded(TapOut(policies=arms, reward=Reward.SHARE), (1, 1, None), (4, 8, None))
    assert share == pytest.approx([1 / 8, 4 / 8])
    quick, slow = Times(0.1, 1.0), Times(0.8, 1.0)
    speed = rewarded(TapOut(policies=arms, reward=Reward.SPEED), (9, 9, quick), (1, 1, quick), (4, 8, slow))
    assert speed == pytest.approx([2 / 1.1 / 9, 5 / 1.8 / 9])  # the first round, which read the prompt, is left out


def test_a_rule_that_takes_all_back_gets_nothing_and_an_idle_drafter_is_nobodys_fault() -> None:
    policy = begin(TapOut(policies=[Chain(), Chain()]))
    policy.frontier(Tree(0), Budget(8, 8, 1))
    policy.observe(outcome(0, 0))
    assert policy.learner.counts.tolist() == [0, 0]
    grown = outcome(0, 1)
    policy.observe(Outcome(grown.grown, Tree(0), Verdict((0,), 2), SCORES, 10))
    assert policy.learner.counts.tolist() == [1, 0]
    assert policy.learner.sums.tolist() == [0, 0]


def test_a_round_that_was_cut_short_does_not_teach() -> None:
    policy = begin(TapOut(policies=[Chain(), Chain()]))
    policy.frontier(Tree(0), Budget(8, 8, 1))
    policy.observe(outcome(8, 8))
    policy.frontier(Tree(0), Budget(8, 2, 1))  # the text ends
    policy.observe(outcome(2, 2))
    assert policy.learner.counts.tolist() == [1, 0]


class Short(Chain):
    """A chain of one."""

    def frontier(self, tree: Tree, budget: Budget) -> Any:
        """The root alone."""
        return super().frontier(tree, budget) if tree.height == 0 else []


@pytest.mark.parametrize("rule", [Rule.UCB, Rule.THOMPSON])
def test_tapout_settles_on_the_better_rule(rule: Rule) -> None:
    recipe = Recipe(
        Model(model=Toy("target")), TapOut(policies=[Short(), Chain()], bandit=rule), Match(), Fixed(5, 5, 1)
    )
    steps = Engine(Toy("target", context=4000), recipe).rounds(PROMPT, Sampling(max_tokens=3900), Keyed(0))
    heights = [step.tree.height for step in itertools.islice(steps, 300)]
    assert heights[-50:].count(5) > 40
    assert 1 in heights


@pytest.mark.parametrize("rule", Rule)
def test_tapout_keeps_the_law_over_rounds(rule: Rule) -> None:
    policy = TapOut(policies=[Short(), Chain(), Svip()], bandit=rule)
    recipe = Recipe(Model(model=Toy("draft"), draws=Draw.IID), policy, Speculative(), Fixed(2, 2, 1))
    assert law_error(recipe, rounds=2, horizon=3) <= 1e-12


# --------------------------------------------------------------------------- smartspec, posterior
OPTIMA = {  # draft seconds of a token over those of a pass -> best length at acceptance .5, .6, .7, .8, .9
    0.02: (4, 6, 8, 11, 19),
    0.05: (3, 4, 6, 8, 13),
    0.1: (2, 3, 4, 6, 10),
    0.2: (1, 2, 3, 4, 7),
    0.5: (0, 1, 1, 2, 3),
}


@pytest.mark.parametrize("step", OPTIMA)
def test_smartspec_has_the_optimal_length(step: float) -> None:
    controller = begin(SmartSpec(most=24, bonus=1.0))
    controller.record.step = step
    found = [int(np.argmax(controller.goodput(rate))) for rate in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert found == list(OPTIMA[step])


def test_goodput_is_the_formula() -> None:
    cost = CostCurve([1, 4, 16], [0], [[1.0, 1.5, 4.0]])
    controller = begin(SmartSpec(most=5, batch=3), cost)
    controller.record.step = 0.2
    for length, found in enumerate(controller.goodput(0.6)):
        rows = 3 * (length + 1)
        seconds = length * 0.2 + (cost.seconds(rows, 2) if rows <= 16 else 4.0 * rows / 16)
        assert found == pytest.approx((1.1 if not length else 1.0) * 3 * (1 - 0.6 ** (length + 1)) / 0.4 / seconds)
    assert controller.goodput(1.0)[5] == pytest.approx(3 * 6 / (5 * 0.2 + 4.0 * 18 / 16))


def coin_rounds(controller: Any, rate: float, length: int, rounds: int) -> float:
    """Feed chains whose tokens stand with this chance; the mean of accepted / drafted."""
    coins, shares = np.random.default_rng(2), []
    for _ in range(rounds):
        accepted = next((at for at in range(length) if coins.random() >= rate), length)
        controller.observe(outcome(accepted, length))
        shares.append(accepted / length)
    return float(np.mean(shares))


def test_the_rate_counts_tokens_that_were_put_to_the_question() -> None:
    controller = begin(SmartSpec(fade=1.0))
    published = coin_rounds(controller, 0.8, 5, 3000)
    assert published == pytest.approx(0.538, abs=0.02)  # accepted / drafted is no acceptance rate
    assert controller.rate() == pytest.approx(0.8, abs=0.01)


def test_large_batches_draft_less_and_then_nothing() -> None:
    cost = CostCurve([1, 16, 64], [0], [[1.0, 1.1, 3.0]])  # rows are free up to 16
    lengths = [begin(SmartSpec(batch=batch), cost).budget().depth for batch in (1, 4, 8, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[1] > 0
    assert lengths[-1] == 0


def test_smartspec_looks_beyond_a_stair() -> None:
    cost = CostCurve([1, 2, 9, 1024], [0], [[1.0, 1.9, 1.9, 9.0]])
    assert begin(SmartSpec(), cost).budget().depth == 8  # one more token alone would not pay


def test_smartspec_tries_again_when_it_has_stopped() -> None:
    controller = begin(SmartSpec(probe=4), STEEP)
    pattern = []
    for _ in range(15):
        depth = controller.budget().depth
        pattern.append(depth)
        controller.observe(outcome(0, depth, Times(0.0, STEEP.seconds(depth + 1, 0), 0.0)))
    assert pattern == ([0] * 4 + [1]) * 3


def test_a_pass_of_the_first_round_and_mishaps_do_not_set_the_price_of_drafting() -> None:
    controller = begin(SmartSpec())
    controller.observe(outcome(2, 4, Times(50.0, 1.0, 0.0)))  # read the prompt
    assert controller.record.step == 0
    for _ in range(5):
        controller.observe(outcome(2, 4, Times(0.4, 1.0, 0.0)))
    assert controller.record.step == pytest.approx(0.1)
    controller.observe(outcome(2, 4, Times(40.0, 1.0, 0.0)))
    assert controller.record.step < 0.2


def test_posterior_draws_rates_that_narrow_around_the_truth() -> None:
    young, old = begin(Posterior(fade=1.0)), begin(Posterior(fade=1.0))
    coin_rounds(old, 0.6, 4, 500)
    spreads = []
    for controller in (young, old):
        rates = []
        for _ in range(200):
            rates.append(controller.rate())
            controller.sampler_.commit([1])
        spreads.append(np.std(rates))
        assert np.mean(rates) == pytest.approx(0.7 if controller is young else 0.6, abs=0.04)
    assert spreads[0] > 0.1 > 0.03 > spreads[1]
    assert begin(Posterior()).rate() == begin(Posterior()).rate()  # noise of its place
    assert len({begin(Posterior(seed=seed)).rate() for seed in range(20)}) > 5


def test_posterior_comes_back_from_drafting_nothing_by_itself() -> None:
    controller = begin(Posterior(probe=10_000, fade=1.0), CostCurve([1, 2, 1024], [0], [[1.0, 1.7, 1.7]]))
    for _ in range(3):
        controller.observe(outcome(0, 2))
    lengths = []
    for _ in range(60):
        lengths.append(controller.budget().depth)
        controller.sampler_.commit([1])
    assert 0 in lengths
    assert max(lengths) > 0


@pytest.mark.parametrize("controller", [SmartSpec(most=2), Posterior(most=2), BanditSpec()], ids=str)
def test_lengths_that_adapt_keep_the_law(controller: Any) -> None:
    recipe = Recipe(Model(model=Toy("draft"), draws=Draw.IID), Chain(), Speculative(), controller)
    assert law_error(recipe, rounds=2, horizon=2) <= 1e-12


# ---------------------------------------------------------------------------------------- hedge
class Noted(Hedge):
    """A hedge that keeps every factor it computed, by drafter and place of the text."""

    def reset(self, request: Request) -> None:
        """Begin an empty record."""
        self.columns_: list[list[float]] = [[] for _ in self.drafters]
        super().reset(request)

    def _factors(self, index: int, outcome: Outcome, path: tuple[int, ...]) -> FloatArray:
        found = super()._factors(index, outcome, path)
        self.columns_[index] += found.tolist()
        return found


def best_after(model: str, text: Sequence[int]) -> int:
    """The best next token of a toy."""
    toy = Toy(model)
    [scores] = toy.score([Work(toy.open(text[:-1]), Tree(text[-1]))])
    return int(scores.argmax()[0])


def run_hedge(hedge: Hedge, policy: Any, verifier: Any, sampling: Sampling, rng: Rng, rounds: int) -> tuple[Any, Any]:
    """Rounds of a hedge: what was emitted, and the hedge of the request."""
    engine = Engine(Toy("target"), Recipe(hedge, policy, verifier, Fixed(3, 3, 1)))
    kept: list[Hedge] = []
    fresh = engine.recipe.fresh

    def keep(request: Request) -> Any:
        parts = fresh(request)
        kept.append(parts[0])  # type: ignore[arg-type]
        return parts

    object.__setattr__(engine.recipe, "fresh", keep)
    steps = list(itertools.islice(engine.rounds(PROMPT, sampling, rng), rounds))
    return steps, kept[0]


MODELS = ("draft", "target", "other")


def models(draws: Draw = Draw.TOPK) -> list[Drafter]:
    return [Model(model=Toy(name), draws=draws) for name in MODELS]


def test_every_drafter_is_judged_by_what_it_would_have_drafted() -> None:
    hedge: Any = Noted(drafters=models())
    steps, hedge = run_hedge(hedge, Chain(), Match(), Sampling(max_tokens=64), Keyed(0), 10)
    text = [token for step in steps for token in step.tokens]
    for name, factors in zip(MODELS, hedge.columns_, strict=True):
        right = [float(best_after(name, [*PROMPT, *text[:at]]) == token) for at, token in enumerate(text)]
        assert factors == right
        assert (0.0 in right) is (name != "target")


def test_judging_takes_no_pass_of_the_target_and_leaves_the_round_alone() -> None:
    passes = []

    class Counted(Toy):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            passes.append(len(work[0].tree))
            return super().score(work, chunks)

    hedge = Hedge(drafters=[Ngram(), *models()])
    engine = Engine(Counted("target"), Recipe(hedge, Static(shape=[2, 1]), Match(), Fixed(4, 2, 2)))
    steps = itertools.islice(engine.rounds(PROMPT, Sampling(max_tokens=64), Keyed(0)), 8)
    for count, step in enumerate(steps, 1):
        assert len(passes) == count
        sources = {int(source) for source in step.grown.sources[1:]}
        assert len(sources) <= 1  # one drafter alone
        assert len(step.grown) - 1 <= 4


def test_hedge_follows_the_drafter_that_is_right() -> None:
    hedge = Hedge(drafters=[Model(model=Toy("draft")), Model(model=Toy("target"))])
    engine = Engine(Toy("target"), Recipe(hedge, Chain(), Match(), Fixed(3, 3, 1)))
    steps = list(itertools.islice(engine.rounds(PROMPT, Sampling(max_tokens=200), Keyed(0)), 12))
    leaders = [int(step.grown.sources[1]) for step in steps]
    assert leaders[0] == 1
    assert set(leaders[6:]) == {2}
    weights = engine.recipe.drafter.learner.weights()  # type: ignore[attr-defined]
    assert weights[1] > 0.9
    again = next(engine.rounds(PROMPT, Sampling(max_tokens=20), Keyed(0)))
    assert int(again.grown.sources[1]) == 2  # what was learnt stays for the next request


def overlaps(model: str, text: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """The laws of target and draft after this text, at temperature 1."""
    laws = []
    for name in ("target", model):
        toy = Toy(name)
        [scores] = toy.score([Work(toy.open(text[:-1]), Tree(text[-1]))])
        laws.append(softmax(scores.logits(0)))
    return laws[0], laws[1]


def test_products_of_factors_are_the_exact_chances_of_acceptance() -> None:
    model, exact = "other", [0.0, 0.0]  # chances that its first draft stands, and its first two
    p, q = overlaps(model, PROMPT)
    for token, covered in enumerate(np.minimum(p, q)):
        after_p, after_q = overlaps(model, [*PROMPT, token])
        exact[0] += covered
        exact[1] += covered * np.minimum(after_p, after_q).sum()

    sampling = Sampling(temperature=1.0, max_tokens=8)
    drafters: list[Drafter] = [Model(model=Toy(name), draws=Draw.IID) for name in ("draft", model)]
    found, paper = np.zeros(2), 0.0

    def run(rng: Rng) -> tuple[list[int], FloatArray]:
        hedge: Any = Noted(drafters=drafters)
        steps, hedge = run_hedge(hedge, Short(), Speculative(), sampling, rng, 2)
        return [token for step in steps for token in step.tokens], np.array(hedge.columns_[1][:2])

    for chance, (text, factors) in outcomes(run):
        found += chance * np.cumprod(factors)
        second = overlaps(model, [*PROMPT, text[0]])
        paper += chance * np.minimum(p, q).sum() * np.minimum(*second).sum()
    assert found == pytest.approx(exact, abs=1e-12)
    assert abs(paper - exact[1]) > 1e-3  # the overlap of the laws weighs first tokens by p, not by what is accepted


@pytest.mark.parametrize("draws", [Draw.IID, Draw.TOPK], ids=lambda draws: draws.value)
def test_hedge_keeps_the_law_over_rounds(draws: Draw) -> None:
    verifier: Any = Speculative() if draws is Draw.IID else Match()
    recipe = Recipe(Hedge(drafters=models(draws), window=1), Chain(), verifier, Fixed(1, 1, 1))
    assert law_error(recipe, rounds=2, horizon=3) <= 1e-12


def test_hedge_can_draw_its_drafter_and_counts_only_whole_windows() -> None:
    hedge: Any = begin(Hedge(drafters=[Ngram(), Ngram(longest=2)], draw=True, window=3))
    leaders = set()
    for position in range(40):
        hedge._choose(position)
        leaders.add(hedge.leader_)
    assert leaders == {0, 1}
    hedge.factors_ = [np.array((1.0, 1.0)), np.array((1.0, 0.0))]
    hedge._factors = lambda index, outcome, path: np.array([(0.5, 1.0)[index]])
    hedge._judge(outcome(0, 1))
    losses = np.array((1 - (1 + 1 + 1 + 0.5) / 4, 1 - (1 + 1 + 0 + 0) / 4))
    assert hedge.learner.regrets == pytest.approx(losses.mean() - losses)
    assert len(hedge.factors_) == 2


def test_a_rest_ends_the_windows() -> None:
    hedge: Any = begin(Hedge(drafters=[Ngram(), Ngram(longest=2)]))
    hedge.observe(outcome(1, 1))
    assert len(hedge.factors_) == 2
    hedge.observe(outcome(0, 0))
    assert hedge.factors_ == []


def test_hedge_needs_drafters_of_one_kind_and_at_least_one() -> None:
    with pytest.raises(SapwoodError, match="drafters=0 must be from 1 to 28"):
        Hedge(drafters=[])
    with pytest.raises(Unsound, match="mixes iid draws with others"):
        Recipe(Hedge(drafters=[Ngram(), *models(Draw.IID)]), Chain(), Match(), Fixed())
    assert isinstance(Hedge(), Part)
