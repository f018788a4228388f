"""C2T: features of the classifier, the estimator made of it, the nodes that are kept."""

import math
from pathlib import Path

import numpy as np
import pytest

from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.estimators import classified as estimate
from sapwood.estimators.classified import entropies, features, passing
from sapwood.policies.c2t import C2t, balanced
from sapwood.policies.reach import value
from tests.helpers.hidden_state_toy import random_part
from tests.helpers.trained_policy_rounds import bound


def forked() -> Tree:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.25])
    tree.extend(1, [1, 2], [0.8, 0.2])
    tree.extend(3, [1, 2], [0.9, 0.6])  # two drafters that agree: more than one in all
    return tree


def test_entropy_is_that_of_the_children_and_the_rest() -> None:
    found = entropies(forked())
    assert found[0] == pytest.approx(-0.5 * math.log(0.5) - 2 * 0.25 * math.log(0.25))
    assert found[1] == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2))
    assert found[3] == pytest.approx(-0.6 * math.log(0.6) - 0.4 * math.log(0.4))
    assert found[2] == found[4] == 0.0  # no children: nothing is known, and nothing asks


def test_features_are_joint_probability_entropy_and_depth() -> None:
    tree = forked()
    rows = features(tree)
    entropy = entropies(tree)
    joint = np.array([0.5, 0.25, 0.4, 0.1, 0.36, 0.24])
    assert rows[1:, 0].tolist() == pytest.approx(np.log(joint / (1 - joint)).tolist())
    assert rows[0, 0] == 8  # sure, within bounds
    assert rows[1:, 1].tolist() == pytest.approx([entropy[p] for p in (0, 0, 1, 1, 3, 3)])
    assert (rows[:, 2] * 10).tolist() == pytest.approx([0, 1, 1, 2, 2, 3, 3])


def test_the_estimators_reach_is_the_classifiers_score(tmp_path: Path) -> None:
    estimator = bound(estimate.Classified(weights=random_part("c2t", tmp_path)))
    assert isinstance(estimator, estimate.Classified)
    tree = forked()
    score = passing(tree, estimator.net)
    assert value(tree, estimator) == pytest.approx(score)
    assert (score[1:] <= score[tree.parents[1:]]).all()
    whole = estimator.chance(forked(), 1)
    assert whole[3:] == pytest.approx(estimator.chance(forked(), 4))


def test_the_policy_keeps_what_passes_and_the_best_of_each_level(tmp_path: Path) -> None:
    bias = np.array([-4 * math.log(0.38 / 0.62)], np.float32)
    joint = NumpyMlp([np.array([[4.0, 0, 0]], np.float32)], [bias], np.zeros(3), np.ones(3))
    MlpBundle("c2t", {"classifier": joint}, {"base": 0.5}).save(tmp_path)
    tree = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert tree.kept.tolist() == [0, 1, 3]  # joint above 0.38
    MlpBundle("c2t", {"classifier": joint}, {"base": 0.01}).save(
        tmp_path
    )  # one in a hundred is half of all, balanced
    every = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert len(every) == 6  # all but the one of joint probability 0.1
    narrow = bound(C2t(weights=str(tmp_path), level=1)).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert narrow.kept.tolist() == [0, 1, 3, 5]
    few = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(2, 9, 9))  # type: ignore[attr-defined]
    assert few.kept.tolist() == [0, 1, 3]


def test_balancing_moves_the_base_rate_to_one_half() -> None:
    assert balanced(np.array([0.01, 0.5, 1.0, 0.0]), 0.01).tolist() == pytest.approx(
        [0.5, 0.99, 1.0, 0.0]
    )
