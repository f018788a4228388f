"""What the small predictors are fitted on: rows, thinned refusals, replayed lengths, cuts and excuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.tree import Tree
from sapwood.engine.cost_model import flat
from sapwood.errors import SapwoodError
from sapwood.estimators.classified import features
from sapwood.train import c2t, judge, ldlp, ltd, specdecpp
from sapwood.train.judge import HarmlessRule, Mismatch, accepted_shares, harmless, refused
from sapwood.train.replay import ReplayPrices
from sapwood.train.rounds import UNKNOWN
from tests.helpers.bench_records import outcome
from tests.helpers.hand_made_rounds import chain, recorded

torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------- SpecDec++
def test_a_states_label_is_that_of_its_own_node() -> None:
    found = recorded(
        [chain(0.5, 0.5, 0.5), chain(0.5, 0.5)],
        [[1, 0, 0], [1, 1]],
        kept=np.array([2, 1]),
        owners=np.array([1, 2, 2]),
        states=np.arange(6).reshape(3, 2).astype(np.float16),
    )
    states, labels, owner = specdecpp.rows(found)
    assert labels.tolist() == [1, 0, 1]
    assert owner.tolist() == [0, 0, 1]
    assert states.tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(SapwoodError, match="no drafter states were recorded"):
        specdecpp.rows(recorded([chain(0.5)], [[1]]))


# ---------------------------------------------------------------------------------------------- C2T
def test_nodes_of_which_nothing_is_known_are_no_rows() -> None:
    trees = [chain(0.9, 0.5), chain(0.25)]
    inputs, labels, owner = c2t.rows(recorded(trees, [[1, UNKNOWN], [0]]))
    assert (labels.tolist(), owner.tolist()) == ([1, 0], [0, 1])
    np.testing.assert_allclose(inputs, [features(trees[0])[1], features(trees[1])[1]])
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        c2t.rows(recorded([Tree(0)], [[]]))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_refusals_are_thinned_and_nothing_else(made: list[tuple[bool, bool]]) -> None:
    labels = np.array([yes for yes, _ in made], np.int64)
    ours = np.array([own for _, own in made])
    refusals = int((ours & (labels == 0)).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c2t, "MOST", 4)
        left, rate = c2t.thinned(labels, ours, 3)
    assert not (left & ~ours).any()
    assert (left & (labels == 1)).tolist() == (ours & (labels == 1)).tolist()
    assert int((left & (labels == 0)).sum()) == min(refusals, 4)
    assert rate == pytest.approx(min(refusals, 4) / refusals if refusals else 1.0)


# --------------------------------------------------------------------------------------------- LDLP
def test_lengths_are_replayed_against_the_best_constant() -> None:
    length = np.array([0, 3, 0, 3])
    cap = np.full(4, 4)
    context = np.full(4, 10)
    held = np.array([False, False, True, True])
    prices = ReplayPrices(0.5, flat(1.0))  # a level costs half a pass
    found = ldlp.compare(np.array([0, 3]), length, cap, context, held, prices)
    # perfect: (1 + 4) tokens in (1.0 + 2.5) seconds
    assert found["perfect"] == found["tokens per second"] == pytest.approx(5 / 3.5)
    # of constants on the other half, three levels bring 5 tokens in 5 seconds, none 2 in 2
    assert found["best constant"] == pytest.approx(1.0)
    short = ldlp.compare(np.array([0, 1]), length, cap, context, held, prices)
    assert short["tokens per second"] == pytest.approx(3 / 2.5)


def test_beyond_its_last_level_a_round_is_not_replayed() -> None:
    held = np.array([False, True])
    found = ldlp.compare(
        np.array([9]),
        np.array([2, 2]),
        np.array([2, 2]),
        np.zeros(2, np.int64),
        held,
        ReplayPrices(0.5, flat(1.0)),
    )
    assert found["tokens per second"] == pytest.approx(3 / 2)


def test_rounds_without_a_state_are_left_out() -> None:
    before = np.array([[np.nan, np.nan], [0.5, 0.25]], np.float16)
    kept = ldlp.states_kept(recorded([chain(0.5)] * 2, [[1]] * 2, before=before))
    assert kept.tolist() == [False, True]
    with pytest.raises(SapwoodError, match="no target states were recorded"):
        ldlp.states_kept(recorded([chain(0.5)], [[1]]))


# ---------------------------------------------------------------------------------------------- LTD
def cuts() -> ltd.ReplayedRounds:
    """Two rounds, two depths, sizes one and two; only the deep cut of the first round pays."""
    tokens = np.array([[[1.0, 1.0], [4.0, 2.0]], [[2.0, 1.0], [2.0, 1.0]]])
    seconds = np.array([[[1.0, 1.0], [2.0, 2.0]], [[1.0, 1.0], [4.0, 1.0]]])
    views = np.zeros((2, 2, 1))
    return ltd.ReplayedRounds(views, views, tokens, seconds, np.array([2, 1]))


def test_real_depths_end_with_the_tree() -> None:
    assert cuts().real.tolist() == [[True, True], [True, False]]


def test_the_best_constant_is_that_of_most_tokens_per_second() -> None:
    data = cuts()
    both = np.ones(2, bool)
    depth, size = ltd.best_constant(data, both)
    speeds = {(1, 0): 3 / 2, (1, 1): 2 / 2, (2, 0): 6 / 6, (2, 1): 3 / 3}
    assert max(speeds, key=lambda key: speeds[key]) == (1, 0)
    assert (depth.tolist(), size.tolist()) == ([1, 1], [[0, 0], [0, 0]])
    assert ltd.throughput(data, both, depth, size) == pytest.approx(1.5)
    depth, _ = ltd.best_constant(data, np.array([True, False]))
    assert depth.tolist() == [2, 2]


def test_each_round_is_read_at_its_own_depth_and_size() -> None:
    data = cuts()
    size = np.array([[1, 0], [0, 1]])
    depth = np.array([2, 1])
    assert ltd.picked(size, depth).tolist() == [0, 0]
    both = np.ones(2, bool)
    assert ltd.throughput(data, both, depth, size) == pytest.approx((4 + 2) / (2 + 1))
    assert ltd.throughput(data, np.array([False, True]), depth, size) == pytest.approx(2.0)


def test_policies_choose_by_their_outputs() -> None:
    data = replace(cuts(), levels=np.array([[[1.0], [-1.0]], [[1.0], [1.0]]]))
    go_on: Any = lambda views: views  # noqa: E731
    assert ltd.choose_depth(go_on, data).tolist() == [2, 1]  # the second tree has one level
    stop: Any = lambda views: -np.abs(views)  # noqa: E731
    assert ltd.choose_depth(stop, data).tolist() == [1, 1]
    third: Any = lambda views: np.tile([0.0, 1.0, 5.0], (2, 2, 1))  # noqa: E731
    assert ltd.choose_size(third, data).tolist() == [[2, 2], [2, 2]]


def test_nothing_drafted_is_nothing_to_choose_from() -> None:
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        ltd.fit(recorded([Tree(0)] * 10, [[]] * 10))


# -------------------------------------------------------------------------------------------- judge
def test_the_refused_token_is_the_drafters_best_at_the_end_of_the_path() -> None:
    round_ = outcome([0, 1, 1, 0], (0, 1))
    round_.tree.probs[2:4] = [0.25, 0.75]
    assert refused(round_) == 13
    assert refused(outcome([0], (0, 1))) is None
    assert refused(outcome([], (0,))) is None


TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
RULE = HarmlessRule(run=3, shift=2, fair=0.1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([3, 4, 5, 6, 7], True),  # what comes after the target's own token
        ([2, 3, 4, 5, 6], True),  # a token was put in
        ([4, 5, 6, 7, 8], True),  # the drafted token stands for two
        ([5, 6, 7, 8, 9], True),  # it stands for three: moved as far as is allowed
        ([99, 98, 3, 4, 5], True),  # found again two tokens later
        ([99, 98, 97, 3, 4], False),  # too late
        ([3, 4, 99, 5, 6], False),  # never three in a row
        ([6, 7, 8, 9, 10], False),  # moved too far
    ],
)
def test_a_mismatch_is_harmless_where_the_text_goes_on_alike(
    words: list[int], expected: bool
) -> None:
    case = Mismatch(position=1, token=99, chance=0.5)
    assert harmless(case, words, TEXT, RULE) is expected


def test_unfair_and_strict_tokens_are_never_harmless() -> None:
    fine = [3, 4, 5, 6, 7]
    case = Mismatch(1, 99, 0.5)
    assert harmless(case, fine, TEXT, RULE)
    assert not harmless(replace(case, chance=0.05), fine, TEXT, RULE)
    assert not harmless(case, fine, TEXT, replace(RULE, strict={99}))
    assert not harmless(case, fine, TEXT, replace(RULE, strict={2}))
    assert harmless(case, fine, TEXT, replace(RULE, strict={3}))


def test_rules_are_told_apart_by_all_they_say() -> None:
    rules = [RULE, replace(RULE, run=4), replace(RULE, shift=1), replace(RULE, fair=0.2)]
    rules.append(replace(RULE, strict={5}))
    assert len({rule.digest for rule in rules}) == 5
    assert replace(RULE, strict={5, 3}).digest == replace(RULE, strict=[3, 5]).digest
    assert RULE.window == 5


def test_excuses_count_what_is_above_a_threshold() -> None:
    said = np.array([0.95, 0.8, 0.6, 0.2])
    seen = np.array([True, True, False, False])
    found = accepted_shares(said, seen)
    assert found == {
        "excused at 0.5": 0.75,
        "right at 0.5": pytest.approx(2 / 3),
        "excused at 0.7": 0.5,
        "right at 0.7": 1.0,
        "excused at 0.9": 0.25,
        "right at 0.9": 1.0,
    }
    assert accepted_shares(np.array([0.1]), np.array([False]))["right at 0.9"] == 1.0


def test_the_judge_is_linear_and_knows_its_layer() -> None:
    noise = np.random.default_rng(0)
    states = noise.normal(size=(200, 3))
    cases = judge.TestedMismatches(np.arange(200) // 10, states, states[:, 0] > 0)
    fit = judge.fit(cases, layer=7, plan=replace(judge.PLAN, epochs=30))
    assert fit.report.scores["ranking"] > 0.9
    assert fit.bundle.facts["layer"] == 7
    assert [weight.shape for weight in fit.bundle.nets["judge"].weights] == [(1, 3)]
    assert (fit.report.rows, fit.report.held) == (160, 40)
