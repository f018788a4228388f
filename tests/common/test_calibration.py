"""Chances that are learnt: logistic and isotonic estimators, what calibration is for, and how it is reported."""

import itertools
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.bench.measure import BenchRun, decode
from sapwood.bench.recipe_set import PLAIN, RecipeSet
from sapwood.bench.report import report
from sapwood.bench.suites import BenchPrompt
from sapwood.common.calibration import BINS, CalibrationCurve
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw, Outcome, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.engine.request_decoder import grow
from sapwood.estimators.binned import Binned
from sapwood.estimators.isotonic import GRID, Isotonic, rising
from sapwood.estimators.logistic import FEATURES, Logistic, described
from sapwood.estimators.raw import Raw
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.reach import value
from sapwood.recipes import resolve

SETTING = EngineContext(ToyBackend(), flat(), no_loader)
SCORES = ToyOutput(np.zeros((1, 3)))
LEARNERS: list[Any] = [Logistic, Isotonic]


def bound(part: Any) -> Any:
    part.bind(SETTING)
    return part


def outcome(grown: Tree, path: tuple[int, ...], bonus: int = 9) -> Outcome:
    """A finished round of a tree that was checked whole."""
    return Outcome(grown, grown, Verdict(path, bonus), SCORES, context=5)


def pair(probs: tuple[float, float] = (0.6, 0.3), source: int = 0) -> Tree:
    """Two chosen children of the root, tokens 1 and 2."""
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], list(probs), source=source)
    return tree


# ------------------------------------------------------------------------------- both estimators
@pytest.mark.parametrize("made", LEARNERS)
def test_they_begin_with_the_drafters_words(made: Any) -> None:
    assert bound(made()).chance(pair(), 1) == pytest.approx([0.6, 0.3])
    assert bound(made()).chance(pair(), 2) == pytest.approx([0.3])
    assert bound(made()).chance(Tree(0), 1).tolist() == []
    extreme = bound(made()).chance(pair((1.0, 0.0)), 1)
    assert extreme[0] > 0.99
    assert extreme[1] < 0.01


@pytest.mark.parametrize("made", LEARNERS)
def test_they_converge_to_the_true_rates(made: Any) -> None:
    random = np.random.default_rng(0)
    learner = bound(made())
    rates = [
        0.75,
        0.1,
    ]  # of the first and the second child, which the drafter holds for 0.6 and 0.3
    for _ in range(1500):
        choice = int(random.choice(3, p=[*rates, 0.15]))
        learner.observe(outcome(pair(), (0,) if choice == 2 else (0, choice + 1)))
    assert learner.chance(pair(), 1) == pytest.approx(rates, abs=0.04)


@pytest.mark.parametrize("made", LEARNERS)
def test_sources_and_ranks_are_told_apart(made: Any) -> None:
    learner = bound(made())
    even = (0.5, 0.5)
    for _ in range(300):
        learner.observe(outcome(pair(even), (0, 1)))  # rank 0 always, rank 1 never
        learner.observe(outcome(pair(even, source=1), (0, 2)))  # the other way round for source 1
    assert learner.chance(pair(even), 1) == pytest.approx([1, 0], abs=0.12)
    assert learner.chance(pair(even, source=1), 1) == pytest.approx([0, 1], abs=0.12)
    assert learner.chance(pair(even, source=2), 1) == pytest.approx(even)  # nothing learnt here


@pytest.mark.parametrize("made", LEARNERS)
def test_old_rounds_fade(made: Any) -> None:
    learner = bound(made(memory=100.0))
    steady = bound(made(memory=1e6))
    for one in (learner, steady):
        for path in [(0, 1)] * 400 + [(0, 2)] * 150:
            one.observe(outcome(pair((0.5, 0.5)), path))
    assert learner.chance(pair((0.5, 0.5)), 1) == pytest.approx([0, 1], abs=0.25)
    assert steady.chance(pair((0.5, 0.5)), 1)[0] > 0.5


@pytest.mark.parametrize("made", LEARNERS)
def test_nodes_that_were_not_put_to_the_question_say_nothing(made: Any) -> None:
    learner = bound(made())
    other = bound(made())
    deep = pair()
    deep.add(1, 5, 0.5)
    deep.add(1, 6, 0.4)
    learner.observe(
        outcome(deep, (0, 2))
    )  # the children of the refused node are neither hits nor misses
    other.observe(outcome(pair(), (0, 2)))
    assert learner.chance(deep, 1) == pytest.approx(other.chance(deep, 1))
    before = learner.chance(deep, 1)
    learner.observe(outcome(Tree(0), (0,)))
    assert learner.chance(deep, 1) == pytest.approx(before)


# ----------------------------------------------------------------------------------- isotonic
def pooled(values: list[float], weights: list[float]) -> list[float]:
    """Pool adjacent violators, one by one."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value_, weight in zip(values, weights, strict=True):
        blocks.append((value_, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, v, m), (b, w, n) = blocks[-2:]
            blocks[-2:] = [((a * v + b * w) / (v + w), v + w, m + n)]
    return [mean for mean, _, length in blocks for _ in range(length)]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 50)), min_size=1, max_size=21))
def test_rising_pools_adjacent_violators(rows: list[tuple[float, float]]) -> None:
    values = [row[0] for row in rows]
    weights = [row[1] for row in rows]
    found = rising(np.array([values, values[::-1]]), np.array([weights, weights[::-1]]))
    assert found[0] == pytest.approx(pooled(values, weights))
    assert found[1] == pytest.approx(pooled(values[::-1], weights[::-1]))


@given(st.lists(st.tuples(st.floats(0.001, 0.999), st.booleans()), min_size=1, max_size=60))
def test_isotonic_chances_never_fall_with_confidence(rounds: list[tuple[float, bool]]) -> None:
    learner = bound(Isotonic(trust=0.01))
    for prob, hit in rounds:
        tree = Tree(0)
        tree.add(ROOT, 1, prob)
        learner.observe(outcome(tree, (0, 1) if hit else (0,)))
    line = Tree(0)
    for token, prob in enumerate(np.linspace(0, 1, 60)):
        line.add(ROOT, token, float(prob))
    chances = learner.chance(line, 1)
    assert (np.diff(chances) >= -1e-12).all()
    assert ((chances >= 0) & (chances <= 1)).all()
    assert learner.trials.sum() == pytest.approx(len(rounds))


def test_a_trial_counts_at_its_two_neighbours() -> None:
    learner = bound(Isotonic())
    tree = Tree(0)
    tree.add(ROOT, 1, float(0.25 * GRID[7] + 0.75 * GRID[8]))
    learner.observe(outcome(tree, (0, 1)))
    assert learner.trials[1, 0, 6:10] == pytest.approx([0, 0.25, 0.75, 0])
    assert learner.hits[1, 0, 6:10] == pytest.approx([0, 0.25, 0.75, 0])


# ----------------------------------------------------------------------------------- logistic
def test_features_are_what_they_say() -> None:
    tree = Tree(0)
    deep = tree.add(tree.add(ROOT, 1, 0.9), 2, 0.2, rank=2, source=1)
    source, features = described(tree, np.array([1, deep]))
    assert source.tolist() == [1, 2]
    assert features[0] == pytest.approx([1, np.log(9), np.log(0.9), 0, 0, 0, 0, 0, 0])
    assert features[1] == pytest.approx([1, np.log(0.25), np.log(0.2), 1, 0, 1, 0, 0, 0])


def test_a_round_is_one_newton_step() -> None:
    learner = bound(Logistic(trust=3.0))
    tree = pair((0.7, 0.2))
    weights = np.zeros(FEATURES)
    known = np.zeros((FEATURES, FEATURES))
    weights[1] = 1.0
    for path in [(0, 1), (0, 2), (0, 1)]:
        step = np.zeros(FEATURES)
        known *= 1 - 2 / 2000
        rows = described(tree, np.array([1, 2]))[1]
        for row, hit in zip(rows, (1 in path, 2 in path), strict=True):
            said = 1 / (1 + np.exp(-row @ weights))
            known += said * (1 - said) * np.outer(row, row)
            step += (hit - said) * row
        weights = weights + np.linalg.inv(known + 3.0 * np.eye(FEATURES)) @ step
        learner.observe(outcome(tree, path))
    assert learner.weights[1] == pytest.approx(weights)


def test_logistic_learns_a_law_of_odds_between_what_it_saw() -> None:
    random = np.random.default_rng(1)
    learner = bound(Logistic())
    for _ in range(2500):
        tree = Tree(0)
        prob = float(random.uniform(0.02, 0.98))
        tree.add(ROOT, 1, prob)
        odds = 0.5 * np.log(prob / (1 - prob)) - 1.0
        learner.observe(
            outcome(tree, (0, 1) if random.random() < 1 / (1 + np.exp(-odds)) else (0,))
        )
    for prob in (0.1, 0.5, 0.9):
        tree = Tree(0)
        tree.add(ROOT, 1, prob)
        assert learner.chance(tree, 1)[0] == pytest.approx(
            1 / (1 + np.exp(1.0) * ((1 - prob) / prob) ** 0.5), abs=0.06
        )


def test_certain_rounds_do_not_run_away() -> None:
    learner = bound(Logistic(trust=1e-3, memory=50.0))
    for _ in range(400):
        learner.observe(outcome(pair((1.0, 0.0)), (0, 2)))
        learner.observe(outcome(pair((0.99, 0.001)), (0, 1)))
    assert np.isfinite(learner.weights).all()
    chances = learner.chance(pair((0.99, 0.001)), 1)
    assert ((chances > 0) & (chances < 1)).all()


#  small trees against chains what a drafter says of its two best tokens, and how often they are right
SAID = (0.5, 0.4)
TRUE = (0.8, 0.1)


class Modest(Part):
    """A drafter that trusts its first choice too little and its second too much, as drafters do in greedy decoding."""

    draws = Draw.TOPK
    needs: frozenset[str] = frozenset()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            tree.extend(node, [1, 2][:width], list(SAID[:width]))


def truth(rounds: int) -> FloatArray:
    """Which token the target says at each depth of each round: 1, 2 or 3."""
    found: FloatArray = np.random.default_rng(0).choice(
        [1, 2, 3], size=(rounds, 5), p=[*TRUE, 1 - sum(TRUE)]
    )
    return found


def tokens_per_pass(policy: Any, budget: Budget, rounds: int = 600) -> tuple[float, Tree]:
    """Over the second half of the rounds, and the last tree that was checked."""
    bound(policy)
    policy.reset(RequestContext([0, 0], Sampler(Sampling(), [0, 0]), ToyBackend("a").open([0])))
    emitted = []
    tree = Tree(0)
    for said in truth(rounds):
        grown = grow(0, Modest(), policy, budget, KeyedRng(0))
        tree = policy.prune(grown, budget)
        path = [ROOT]
        for token in said[:-1]:
            child = tree.child(path[-1], int(token))
            if child is None:
                break
            path.append(child)
        policy.observe(
            Outcome(grown, tree, Verdict(tuple(path), int(said[len(path) - 1])), SCORES, 5)
        )
        emitted.append(len(path))
    return float(np.mean(emitted[rounds // 2 :])), tree


def test_small_trees_lose_to_chains_when_raw_probabilities_are_trusted() -> None:
    chain, _ = tokens_per_pass(Chain(), Budget(3, 3, 1))
    raw, bushy = tokens_per_pass(Best(estimator=Raw()), Budget(3, 3, 2))
    assert raw < chain - 0.2
    assert len(bushy.children(ROOT)) == 2
    assert chain == pytest.approx(1 + 0.8 + 0.64 + 0.512, abs=0.1)
    assert raw == pytest.approx(1 + 0.9 + 0.64, abs=0.1)


@pytest.mark.parametrize("estimator", [Binned(), Logistic(), Isotonic()], ids=str)
def test_calibrated_trees_do_not_as_a_chain_is_one_of_their_shapes(estimator: Any) -> None:
    chain, _ = tokens_per_pass(Chain(), Budget(3, 3, 1))
    ours, tree = tokens_per_pass(Best(stride=8, estimator=estimator), Budget(3, 3, 2))
    assert ours >= chain - 1e-9
    assert tree.parents.tolist() == [-1, 0, 1, 2]


def test_priced_nodes_collapse_to_a_chain_too() -> None:
    price = 0.3 * np.arange(9)  # a row must bring 0.3 tokens
    budget = Budget(8, 4, 2, price)
    for estimator, sibling in ((Raw(), True), (Binned(), False)):
        _, tree = tokens_per_pass(Best(stride=8, estimator=estimator), budget)
        assert (len(tree.children(ROOT)) == 2) is sibling
    assert tree.height == 4  # 0.8 ** 4 = 0.41 still pays; the raw 0.5 ** 2 = 0.25 did not


# ------------------------------------------------------------------------------- reliability
def test_reliability_counts_what_was_said_and_what_stood() -> None:
    tree = pair((0.75, 0.25))
    tree.add(1, 5, 0.5)  # child of the accepted node: the target said it next
    tree.add(2, 6, 0.5)  # child of the refused one: not put to the question
    value(tree, Raw())
    seen = CalibrationCurve()
    seen.count(outcome(tree, (0, 1), bonus=5))
    bins = seen.bins()
    assert bins is not None
    found = [[one.low, one.high, one.nodes, one.predicted, one.accepted] for one in bins]
    assert np.array(found) == pytest.approx(
        np.array([[0.2, 0.3, 1, 0.25, 0.0], [0.5, 0.6, 1, 0.5, 1.0], [0.7, 0.8, 1, 0.75, 1.0]])
    )
    assert seen.error() == pytest.approx((0.25 + 0.5 + 0.25) / 3)
    twice = seen + seen
    assert twice.sums.sum(1).tolist() == [6, 3, 4]
    assert twice.error() == seen.error()
    assert seen.sums.sum() == pytest.approx(3 + 1.5 + 2)  # adding made a new one


def test_an_honest_estimator_has_no_error_and_nobody_is_judged_without_an_estimate() -> None:
    random = np.random.default_rng(0)
    honest = CalibrationCurve()
    for chance in random.random(4000):
        tree = Tree(0)
        tree.add(ROOT, 1, float(chance))
        value(tree, Raw())
        honest.count(outcome(tree, (0, 1) if random.random() < chance else (0,)))
    error = honest.error()
    assert error is not None
    assert error < 0.03
    assert honest.sums[0].min() > 4000 / BINS / 2
    silent = CalibrationCurve()
    silent.count(outcome(pair(), (0, 1)))
    assert silent.bins() is None
    assert silent.error() is None


def test_a_certain_node_and_one_below_a_hopeless_parent_have_their_bins() -> None:
    tree = Tree(0)
    tree.add(tree.add(tree.add(ROOT, 1, 1.0), 2, 0.0), 3, 0.7)
    value(tree, Raw())
    seen = CalibrationCurve()
    seen.count(outcome(tree, (0, 1, 2, 3)))
    assert seen.sums[0].tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_rows_carry_reliability_and_the_clock_does_not() -> None:
    ticks = itertools.count()
    target: Any = ToyBackend(vocab=5, context=200)
    spelled = "recycling + best + match + fixed(nodes=6, depth=3, width=3)"
    engines = {
        name: Engine(target, resolve(name), now=lambda: float(next(ticks)))
        for name in (PLAIN, spelled, "pld")
    }
    prompt = [0, 1, 2, 0, 1, 2, 0, 1]
    runs = {
        name: [decode(engine, prompt, Sampling(max_tokens=30))] for name, engine in engines.items()
    }
    done = runs[spelled][0]
    assert (
        done.seconds == 2 * done.passes + done.passes + done.passes - 1
    )  # as many looks at the clock as ever
    rows = report(
        target,
        RecipeSet(engines),
        [BenchPrompt("p", "one", "one", "x")],
        [prompt],
        runs,
        Sampling(),
    )
    found = {row.recipe: row for row in rows if row.category == "one"}
    assert found[PLAIN].reliability is None
    assert found["pld"].reliability is None
    assert found["pld"].ece is None
    assert found[spelled].ece == done.reliability.error()
    bins = json.loads(json.dumps(asdict(found[spelled]), allow_nan=False))["reliability"]
    assert list(bins[0]) == ["low", "high", "nodes", "predicted", "accepted"]
    assert sum(one["nodes"] for one in bins) == done.reliability.sums[0].sum()
    assert sum(one["nodes"] * one["accepted"] for one in bins) >= done.accepted - 1e-9
    assert BenchRun().reliability.error() is None
