"""Recorded rounds: trees again from columns, held-out prompts, prices of drafting, labels of nodes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, StageTimes, Verdict
from sapwood.engine.cost_model import CostModel, flat
from sapwood.errors import SapwoodError
from sapwood.train.replay import ReplayPrices, priced, speed
from sapwood.train.rounds import (
    UNKNOWN,
    RecordedRounds,
    final_layer,
    held_out,
    labelled,
    line,
    spans,
    state,
)
from tests.helpers.hand_made_rounds import chain, recorded

parents_of = st.lists(st.integers(0, 30), max_size=8).map(
    lambda made: [parent % (node + 1) for node, parent in enumerate(made)]
)


def tree_of(parents: list[int]) -> Tree:
    tree = Tree(3)
    for node, parent in enumerate(parents, 1):
        tree.add(parent, node, 1 / (1 + node), sampled=True)
    return tree


# ------------------------------------------------------------------------------------------ trees
@given(st.lists(parents_of, min_size=1, max_size=5))
def test_trees_come_back_from_their_columns(shapes: list[list[int]]) -> None:
    trees = [tree_of(parents) for parents in shapes]
    found = recorded(trees, [[0] * len(parents) for parents in shapes], root=np.full(len(trees), 3))
    for tree, again in zip(trees, found.trees(), strict=True):
        assert again.tokens.tolist() == tree.tokens.tolist()
        assert again.parents.tolist() == tree.parents.tolist()
        assert again.probs[1:].tolist() == tree.probs[1:].tolist()
    assert found.heights().tolist() == [tree.height for tree in trees]


@given(st.lists(st.integers(0, 5), max_size=8))
def test_rows_of_rounds_lie_one_after_the_other(counts: list[int]) -> None:
    parts = spans(np.array(counts, np.int64))
    places = list(range(sum(counts)))
    assert [places[part] for part in parts] == [
        places[sum(counts[:at]) : sum(counts[: at + 1])] for at in range(len(counts))
    ]


# --------------------------------------------------------------------------------------- held out
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=40).filter(lambda made: len(set(made)) > 1),
    st.floats(0, 1),
    st.integers(0, 5),
)
def test_whole_prompts_are_held_out_at_least_one_and_never_all(
    prompts: list[int], share: float, seed: int
) -> None:
    column = np.array(prompts)
    held = held_out(column, share, seed)
    tested, learned = set(column[held].tolist()), set(column[~held].tolist())
    assert tested
    assert learned
    assert not tested & learned
    count = len(set(prompts))
    assert len(tested) == min(max(1, round(share * count)), count - 1)
    assert held.tolist() == held_out(column, share, seed).tolist()


def test_one_prompt_cannot_be_parted() -> None:
    with pytest.raises(SapwoodError, match="rows of at least two prompts, one to test on"):
        held_out(np.array([4, 4, 4]), 0.5, 0)


# ----------------------------------------------------------------------------------------- prices
def test_a_levels_seconds_leave_out_the_first_round_of_a_prompt() -> None:
    trees = [chain(0.5, 0.5)] * 6
    draft = np.array([99.0, 0.2, 0.4, 99.0, 0.4, 0.8])
    found = recorded(trees, [[0, 0]] * 6, prompt=np.array([0, 0, 0, 1, 1, 1]), draft=draft)
    assert found.level_seconds() == pytest.approx(np.quantile([0.1, 0.2, 0.2, 0.4], 0.25))


def test_rounds_that_drafted_nothing_have_no_level() -> None:
    trees = [chain(0.5), Tree(0), chain(0.5)]
    found = recorded(trees, [[0], [], [0]], draft=np.array([5.0, 7.0, 0.25]))
    assert found.level_seconds() == 0.25
    assert recorded([Tree(0)] * 3, [[]] * 3).level_seconds() == 0.0


def test_a_round_costs_its_levels_and_its_pass() -> None:
    curve = CostModel([1, 11], [0], [[1.0, 2.0]])
    prices = ReplayPrices(0.25, curve)
    assert prices.seconds(4, 10, 0) == pytest.approx(4 * 0.25 + 2.0)
    assert prices.seconds(0, 0, 0) == pytest.approx(1.0)


def test_one_more_token_costs_its_level_and_its_row() -> None:
    curve = CostModel([1, 11], [0], [[1.0, 2.0]])  # a tenth of a second for each row
    assert ReplayPrices(0.25, curve).token(2.0, 5, 0) == pytest.approx(2.0 * (0.25 + 0.1))
    assert ReplayPrices(0.25, flat()).token(2.0, 0, 0) == pytest.approx(0.5)


def test_prices_are_those_of_the_rounds_unless_a_curve_is_given() -> None:
    found = recorded([chain(0.5)] * 4, [[1]] * 4, verify=np.array([1.0, 2.0, 4.0, 9.0]))
    assert priced(found, None).seconds(0, 50, 7) == pytest.approx(3.0)
    curve = flat(8.0)
    assert priced(found, curve).cost is curve
    with pytest.raises(SapwoodError, match="no rounds were recorded; give more prompts"):
        priced(recorded([], []), None)


def test_speed_is_a_ratio_of_sums() -> None:
    assert speed(np.array([1.0, 9.0]), np.array([1.0, 1.0])) == 5.0
    assert speed(np.array([1.0, 9.0]), np.array([1.0, 3.0])) == 2.5


# ----------------------------------------------------------------------------------------- labels
def outcome(grown: Tree, tree: Tree, verdict: Verdict) -> Outcome:
    scores: Any = None
    return Outcome(grown, tree, verdict, scores, 12, StageTimes(draft=0.5, verify=2.0))


def test_nodes_on_the_path_are_said_and_their_siblings_are_not() -> None:
    tree = tree_of([0, 0, 1, 1])  # 1 and 2 below the root, 3 and 4 below 1
    labels, tried = labelled(outcome(tree, tree, Verdict((0, 1, 4), 77)))
    assert labels[1:].tolist() == [1, 0, 0, 1]
    assert tried[1:].tolist() == [True] * 4


def test_what_lies_below_a_refused_node_is_refused_but_was_not_tried() -> None:
    tree = tree_of([0, 0, 2])
    labels, tried = labelled(outcome(tree, tree, Verdict((0, 1), 77)))
    assert labels[1:].tolist() == [1, 0, 0]
    assert tried[1:].tolist() == [True, True, False]


def test_beyond_what_was_checked_nothing_is_known() -> None:
    grown = tree_of([0, 1, 2, 2])
    checked = grown.keep([0, 1])
    labels, _ = labelled(outcome(grown, checked, Verdict((0, 1), 2)))
    # node 2 carries the token that the target said, but its children were never checked
    assert labels[1:].tolist() == [1, 1, UNKNOWN, UNKNOWN]
    labels, _ = labelled(outcome(grown, checked, Verdict((0, 1), 9)))
    assert labels[1:].tolist() == [1, 0, 0, 0]


def test_a_round_becomes_one_line() -> None:
    tree = tree_of([0, 0, 1])
    tree.states = {0: np.ones(2), 1: np.full(2, 3.0), 2: np.zeros(2)}
    found = line(outcome(tree, tree, Verdict((0, 1), 77)), np.array([0.5, 0.25], np.float16), 6)
    assert isinstance(found, RecordedRounds)
    assert (found.prompt.tolist(), found.context.tolist(), found.root.tolist()) == ([6], [12], [3])
    assert (found.accepted.tolist(), found.nodes.tolist(), found.kept.tolist()) == ([1], [3], [2])
    assert found.owners.tolist() == [1, 2]  # the root's state says nothing of a drafted token
    assert found.states.tolist() == [[3.0, 3.0], [0.0, 0.0]]
    assert found.before.tolist() == [[0.5, 0.25]]
    assert (found.draft.tolist(), found.verify.tolist()) == ([0.5], [2.0])


def test_states_are_kept_where_a_layer_is_watched() -> None:
    assert state(None, 0, 3).shape == (0,)
    scores: Any = ToyBackend(vocab=4).scores([(1,)])
    assert state(scores, 0, None).shape == (0,)


def test_a_target_without_a_model_has_no_final_layer() -> None:
    target: Any = ToyBackend()
    with pytest.raises(SapwoodError, match="shows no states to learn from; use a torch model"):
        final_layer(target)
