"""Stop rules: what each decides, against a slow reference; what it may not look at; and its wrong variants."""

import dataclasses
import itertools
import math
from collections import deque
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.common.uncertainty import (
    DecayedMean,
    certainty,
    distance,
    entropy,
    entropy_at,
    peak_at,
    probs_at,
)
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.on_the_fly import AcceptanceHistory, OnTheFly
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext, Policy
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw, Outcome, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.propose import propose
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies.adaedl import AdaEdl
from sapwood.policies.adasd_stop import AdaSdStop
from sapwood.policies.cm_asd import CmAsd
from sapwood.policies.fallback import Fallback
from sapwood.policies.hf_dynamic import HfDynamic, fit
from sapwood.policies.logit_margin import LogitMargin
from sapwood.policies.max_confidence import MaxConfidence
from sapwood.policies.stop_base import StopBase
from sapwood.policies.svip import Svip
from sapwood.policies.svip_difference import SvipDifference
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.stop_rounds import DEEP, draft_laws, rounds, slow_entropy, texts

EXACT, WRONG = 1e-12, 1e-3
SEEDS = st.integers(0, 10_000)


def laws_of(seed: int, size: int = 5) -> FloatArray:
    """A random law."""
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.6))


# -------------------------------------------------------------------------------- measures of doubt
@given(SEEDS, SEEDS)
def test_measures_are_what_their_names_say(one: int, two: int) -> None:
    p = laws_of(one)
    q = laws_of(two)
    assert entropy(p) == pytest.approx(slow_entropy(p))
    middle = (p + q) / 2
    divergence = (
        sum(a * math.log(a / m) + b * math.log(b / m) for a, b, m in zip(p, q, middle, strict=True))
        / 2
    )
    assert distance(p, q) == pytest.approx(math.sqrt(max(0.0, divergence)), abs=1e-7)
    ranked = sorted(p.tolist(), reverse=True)
    logit = math.log(ranked[0] / ranked[1])
    parts = 1 - slow_entropy(p) / math.log(5), 2 / (1 + math.exp(-logit)) - 1, ranked[0] - ranked[1]
    assert certainty(p) == pytest.approx(sum(parts) / 3)


def test_doubt_lowers_certainty() -> None:
    all_probs = [np.array([1 - 3 * rest, rest, rest, rest]) for rest in (0.0, 0.05, 0.15, 0.25)]
    values = [certainty(full_probs) for full_probs in all_probs]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(
        0.0
    )  # a flat law; the entropy itself, as printed, would say 1


def test_distances_end_where_laws_share_nothing() -> None:
    assert distance(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(
        math.sqrt(math.log(2))
    )


def test_a_mean_fades() -> None:
    mean = DecayedMean(0.5)
    assert mean.value is None
    for value in (8.0, 2.0, 1.0):
        mean.add(value)
    assert mean.value == pytest.approx((8 / 4 + 2 / 2 + 1) / (1 / 4 + 1 / 2 + 1))


@pytest.mark.parametrize("draws", Draw)
def test_the_law_of_a_node_is_whole_whatever_was_drawn(draws: Draw) -> None:
    full_probs = np.array([0.3, 0.28, 0.22, 0.15, 0.05])
    for seed in range(5):
        tree = Tree(0)
        tree.keeps_probs = True
        propose(tree, ROOT, full_probs, 3, draws, 1, KeyedRng(seed), source=0)
        assert probs_at(tree, ROOT) == pytest.approx(full_probs)


def test_without_a_law_only_chosen_children_are_looked_at() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.6, 0.1])
    assert entropy_at(tree, ROOT) == pytest.approx(slow_entropy(np.array([0.6, 0.1, 0.3])))
    assert peak_at(tree, ROOT) == 0.6
    drawn = Tree(0)
    drawn.add(ROOT, 1, 0.6, sampled=True)
    other = Tree(0)
    other.add(ROOT, 2, 0.01, sampled=True)
    assert entropy_at(drawn, ROOT) == entropy_at(other, ROOT)
    assert peak_at(drawn, ROOT) == peak_at(other, ROOT)


# ---------------------------------------------------------------------------------------- the rules
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_svip_ends_with_the_first_uncertain_token(temperature: float) -> None:
    done = rounds(Svip(), Sampling(temperature=temperature, max_tokens=500), count=40)
    lengths = set()
    for outcome, text in zip(done, texts(done), strict=True):
        bounds = [
            math.sqrt(0.15 * slow_entropy(full_probs)) for full_probs in draft_laws(outcome, text)
        ]
        length = outcome.tree.height
        assert all(bound <= 0.3 for bound in bounds[: length - 1])
        assert bounds[length - 1] > 0.3 or length == 8
        lengths.add(length)
    assert len(lengths) > 1


def test_adaedl_stops_before_an_uncertain_token_and_moves_its_threshold() -> None:
    done = rounds(AdaEdl(), count=40)
    threshold = 0.7
    share = 0.9
    lengths = set()
    for outcome, text in zip(done, texts(done), strict=True):
        bounds = [
            1 - math.sqrt(0.2 * slow_entropy(full_probs))
            for full_probs in draft_laws(outcome, text)
        ]
        length = outcome.tree.height
        assert all(
            bound >= threshold for bound in bounds[1:length]
        )  # the first token is checked in any case
        assert length == 8 or bounds[length] < threshold or (length == 1 and bounds[0] < threshold)
        share = 0.5 * share + 0.5 * outcome.verdict.accepted / length
        wanted = threshold + (0.01 if share <= 0.9 else -0.01)
        threshold = 0.9 * threshold + 0.1 * wanted
        lengths.add(length)
    assert lengths >= {1, 2}


def test_fallback_leaves_out_a_law_without_a_likely_token() -> None:
    done = rounds(Fallback(), Sampling(max_tokens=500), count=40)
    for outcome, text in zip(done, texts(done), strict=True):
        peaks = [float(full_probs.max()) for full_probs in draft_laws(outcome, text)]
        length = outcome.tree.height
        assert all(peak >= 0.6 for peak in peaks[:length])
        assert length == 8 or peaks[length] < 0.6
    assert {outcome.tree.height for outcome in done} >= {
        0,
        1,
    }  # nothing at all where the first is unlikely


def test_adasd_stop_uses_the_mean_entropy_of_refused_tokens() -> None:
    done = rounds(AdaSdStop(fade=1.0), count=40)
    refused: list[float] = []
    for outcome, text in zip(done, texts(done), strict=True):
        entropies = [slow_entropy(full_probs) for full_probs in draft_laws(outcome, text)]
        length = outcome.tree.height
        limit = float(np.mean(refused)) if refused else math.inf
        assert all(value <= limit for value in entropies[: length - 1])
        assert length == 8 or entropies[length - 1] > limit
        if outcome.verdict.accepted < length:
            refused.append(entropies[outcome.verdict.accepted])
    assert len(refused) > 5


def test_cm_asd_drafts_as_much_as_the_last_round_was_certain() -> None:
    done = rounds(CmAsd(shortest=2, longest=6, boldness=1.2), count=40)
    length = 6
    lengths = set()
    for outcome, text in zip(done, texts(done), strict=True):
        assert outcome.tree.height == length
        mean = float(
            np.mean([certainty(full_probs) for full_probs in draft_laws(outcome, text)[:-1]])
        )
        length = min(6, max(2, math.floor(1.2 * mean * 6)))
        lengths.add(length)
    assert len(lengths) > 2


def slow_fit(probs: list[float], stood: list[bool], regret: float) -> float:
    """The cheapest threshold by trying all of them, the highest of equal ones."""
    costs = {}
    for threshold in (math.inf, *sorted(set(probs), reverse=True)):
        good = [prob >= threshold for prob, stands in zip(probs, stood, strict=True) if stands]
        bad = [prob >= threshold for prob, stands in zip(probs, stood, strict=True) if not stands]
        costs[threshold] = sum(bad) / len(bad) + regret * (1 - sum(good) / len(good))
    return min(costs, key=lambda threshold: round(costs[threshold], 12))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.2, 0.35, 0.5, 0.8, 0.95]), st.booleans()),
        min_size=2,
        max_size=30,
    ),
    st.sampled_from([0.5, 1.0, 3.0, 7.3]),
)
def test_the_roc_threshold_is_the_cheapest(record: list[tuple[float, bool]], regret: float) -> None:
    probs = [prob for prob, _ in record]
    stood = [stands for _, stands in record]
    if len(set(stood)) == 2:
        assert fit(np.array(probs), np.array(stood), regret) == slow_fit(probs, stood, regret)


def test_hf_dynamic_ends_with_an_unlikely_token_and_refits() -> None:
    done = rounds(HfDynamic(), count=40)
    threshold = 0.4
    probs = list[float]()
    stood = list[bool]()
    seen = set()
    for outcome, text in zip(done, texts(done), strict=True):
        all_probs = draft_laws(outcome, text)
        tokens = outcome.tree.tokens[1:].tolist()
        own = [
            float(full_probs[token]) for full_probs, token in zip(all_probs, tokens, strict=False)
        ]
        assert all(prob >= threshold for prob in own[:-1])
        assert own[-1] < threshold or len(own) == 8
        accepted = outcome.verdict.accepted
        tested = own[: accepted + 1]  # what follows a refusal was never tested
        probs += tested
        stood += [place < accepted for place in range(len(tested))]
        if len(probs) > 5 and len(set(stood)) == 2:
            threshold = slow_fit(probs, stood, 3.0)
        seen.add(threshold)
    assert len(seen) > 2


def test_rules_work_without_laws() -> None:
    for policy in (
        AdaEdl(),
        Svip(),
        HfDynamic(),
        CmAsd(),
        AdaSdStop(),
        Fallback(),
        MaxConfidence(),
        LogitMargin(),
        SvipDifference(),
    ):
        engine = Engine(ToyBackend(vocab=2), Recipe(Ngram(), policy, Match(), DEEP))
        done = list(
            itertools.islice(engine.rounds([0, 1] * 6, Sampling(max_tokens=200), KeyedRng(0)), 30)
        )
        assert any(outcome.tree.height for outcome in done), policy


# ------------------------------------------------------------------ the law, over rounds that adapt
ADAPTIVE = [
    AdaEdl(start=0.8, step=1.0, inertia=0.2),
    HfDynamic(samples=1),
    CmAsd(longest=2),
    AdaSdStop(),
    Fallback(),
    MaxConfidence(),
    LogitMargin(),
    SvipDifference(threshold=0.0),
    Svip(threshold=0.2),
]


@pytest.mark.parametrize(
    ("policy", "salt"), zip(ADAPTIVE, itertools.cycle("ab"), strict=False), ids=str
)
def test_what_was_learnt_keeps_the_law_of_the_next_round(policy: Policy, salt: str) -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=Draw.IID),
        policy,
        Speculative(),
        Fixed(nodes=2, depth=2, width=1),
    )
    assert law_error(recipe, ToyBackend(salt), rounds=2, horizon=3) <= EXACT


# ---------------------------------------------------------------------------------------------
# mutants
@dataclasses.dataclass
class DropsByItsOwnProbability(HfDynamic):
    """Leaves out the unlikely token instead of ending with it."""

    drops: ClassVar[bool] = True


@dataclasses.dataclass
class BoundsByTheToken(AdaEdl):
    """Stops before a token because of its own surprise, where the rule means the law's."""

    least: ClassVar[int] = 0

    def ends(self, tree: Tree, child: int) -> bool:
        return 1.0 - math.sqrt(-self.weight * math.log(float(tree.probs[child]))) < self.threshold_


@dataclasses.dataclass
class FallsBackByTheToken(Fallback):
    """Compares the drawn token's probability with the confidence, not the best token's."""

    def ends(self, tree: Tree, child: int) -> bool:
        return bool(tree.probs[child] < self.confidence)


MUTANTS = [DropsByItsOwnProbability(), BoundsByTheToken(), FallsBackByTheToken(confidence=0.4)]


def chain_error(policy: Any) -> float:
    """Worst departure of a sampled chain under the q-rule over a few targets."""
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=Draw.IID),
        policy,
        Speculative(),
        Fixed(nodes=2, depth=2, width=1),
    )
    return max(law_error(recipe, ToyBackend(salt)) for salt in "abc")


@pytest.mark.parametrize("policy", MUTANTS, ids=lambda policy: type(policy).__name__)
def test_leaving_out_a_draw_by_its_own_probability_is_caught(policy: StopBase) -> None:
    assert chain_error(policy) > WRONG
    assert chain_error(type(policy).__mro__[1]()) <= EXACT  # the rule it was made from


def test_the_example_of_the_half_law() -> None:
    """p = (.5, .5), q = (.9, .1), draws below one half left out: the output is (.55, .45)."""
    q = np.array([0.9, 0.1])
    p = np.array([0.5, 0.5])

    class Table(ToyBackend):
        full_probs = p

        def scores(self, contexts: Any) -> Any:
            return ToyOutput(np.log([self.full_probs for _ in contexts]))

    class Draft(Table):
        full_probs = q

    def error(policy: Any) -> float:
        drafter = DraftModel(model=Draft(vocab=2), draws=Draw.IID)
        recipe = Recipe(drafter, policy, Speculative(), Fixed(nodes=1, depth=1, width=1))
        return law_error(recipe, Table(vocab=2), horizon=1)

    assert error(DropsByItsOwnProbability(start=0.5)) == pytest.approx(0.05)
    assert error(HfDynamic(start=0.5)) <= EXACT


# --------------------------------------------------------------------------------------- on-the-fly
def slow_window(alpha: float, price: float, most: int = 20) -> int:
    """The best window by the formula, each written out."""
    paces = {
        depth: sum(alpha**power for power in range(depth + 1)) / (1 + price * depth)
        for depth in range(1, most + 1)
    }
    return max(paces, key=lambda depth: paces[depth])


@given(st.integers(0, 60), st.integers(1, 40), st.floats(0.0, 1.5))
def test_the_window_is_the_best_of_the_formula(accepted: int, refused: int, price: float) -> None:
    memory = AcceptanceHistory(1, deque([(accepted, refused)]), deque([price]))
    assert OnTheFly(slack=0.0).choose(memory) == slow_window(accepted / (accepted + refused), price)


@pytest.mark.parametrize(
    ("price", "alpha", "best"),
    [(0.02, 0.8, 11), (0.05, 0.9, 13), (0.1, 0.7, 4), (0.2, 0.6, 2), (0.5, 0.8, 2)],
)
def test_published_optima(price: float, alpha: float, best: int) -> None:
    assert (
        OnTheFly(slack=0.0).choose(
            AcceptanceHistory(
                1, deque([(int(1000 * alpha), round(1000 - 1000 * alpha))]), deque([price])
            )
        )
        == best
    )


def finished(drafted: int, accepted: int, draft: float, verify: float = 1.0) -> Outcome:
    """A round on a chain of so many tokens."""
    tree = Tree(0)
    for node in range(drafted):
        tree.add(node, 1, 0.5)
        tree.close(node)
    scores: Any = None
    return Outcome(
        tree, tree, Verdict(tuple(range(accepted + 1)), 0), scores, 9, StageTimes(draft, verify)
    )


def started(**options: Any) -> OnTheFly:
    """A controller at the beginning of a request."""
    made = OnTheFly(**options)
    made.bind(EngineContext(ToyBackend(), flat(), no_loader))
    request: Any = None
    made.reset(request)
    return made


def test_acceptance_is_counted_over_tested_tokens() -> None:
    pace = started(window=4, slack=0.0)
    assert pace.budget() == Budget(60, 5, 1)
    for _ in range(2):
        pace.observe(finished(5, 2, draft=0.5))
    assert list(pace.memory.tested) == [(2, 1), (2, 1)]  # not 2 of 5
    pace.observe(finished(5, 5, draft=0.5))
    assert pace.memory.tested[-1] == (5, 0)  # nothing was refused
    assert pace.budget().depth == slow_window(9 / 11, 0.1)


def test_reading_the_prompt_is_no_price_and_old_rounds_are_forgotten() -> None:
    pace = started(window=3)
    pace.observe(finished(5, 1, draft=99.0))
    assert not pace.memory.prices
    assert pace.budget().depth == 5
    for _ in range(3):
        pace.observe(finished(5, 5, draft=0.05))
    assert pace.budget().depth == 20
    for _ in range(3):
        pace.observe(finished(5, 0, draft=2.5))
    assert pace.budget().depth == 1  # never none: what is not tried cannot be learnt


def test_a_window_that_is_hardly_better_is_not_taken() -> None:
    memory = AcceptanceHistory(
        10, deque([(800, 200)]), deque([0.02])
    )  # eleven would be best, by less than a percent
    assert OnTheFly(slack=0.02).choose(memory) == 10
    assert OnTheFly(slack=0.0).choose(memory) == 11


def test_recipes_are_chains() -> None:
    for name in ("adaedl", "svip", "hf-dynamic", "on-the-fly", "cm-asd"):
        engine = Engine(ToyBackend(), resolve(name))
        done = list(
            itertools.islice(
                engine.rounds([0, 1, 2], Sampling(temperature=1.0, max_tokens=99), KeyedRng(0)), 20
            )
        )
        assert all(
            outcome.tree.parents.tolist() == list(range(-1, outcome.tree.height))
            for outcome in done
        )
        assert any(outcome.verdict.accepted for outcome in done)
