"""The C2T classifier is calibrated where the draft is not."""

import dataclasses

import numpy as np
import pytest
import torch

from sapwood.core.tree import Tree
from sapwood.train import c2t
from sapwood.train.rounds import UNKNOWN, RecordedRounds
from tests.helpers.recorded_rounds import made

torch.set_num_threads(1)


def overconfident(noise: np.random.Generator, count: int = 900) -> RecordedRounds:
    """Trees of two children per node, whose draft says q where the truth is q squared."""
    trees = []
    labels = []
    for _ in range(count):
        tree = Tree(0)
        hit = [True]
        for _ in range(3):
            for parent in [node for node in range(len(tree)) if tree.depths[node] == tree.height]:
                q = float(noise.uniform(0.3, 0.95))
                tree.extend(parent, [1, 2], [q, 0.9 * (1 - q)])
                first = noise.random() < q**2
                second = not first and noise.random() < (0.9 * (1 - q)) ** 2 / (1 - q**2)
                hit += [hit[parent] and first, hit[parent] and second]
        trees.append(tree)
        labels.append([int(one) for one in hit[1:]])
    return made(trees, labels)


@pytest.mark.parametrize("most", [100_000, 2000])
def test_the_classifier_is_calibrated_where_the_draft_is_not(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c2t, "MOST", most)  # with and without refused nodes that are left out
    data = overconfident(np.random.default_rng(1))
    fit = c2t.fit(data)
    scores = fit.report.scores
    assert fit.report.after < fit.report.before
    assert fit.report.after < scores["raw loss"]
    assert scores["calibration"] < 0.02
    assert scores["raw calibration"] > 0.05
    assert scores["ranking"] > scores["raw ranking"] - 0.01
    assert fit.bundle.facts["base"] == pytest.approx(data.labels.mean(), abs=0.02)


def test_unknown_nodes_are_not_learned_from() -> None:
    data = overconfident(np.random.default_rng(2), count=60)
    hidden = data.labels.copy()
    hidden[::3] = UNKNOWN
    inputs, labels, owner = c2t.rows(dataclasses.replace(data, labels=hidden))
    assert len(inputs) == len(labels) == len(owner) == int((hidden != UNKNOWN).sum())
    assert set(labels.tolist()) == {0, 1}
