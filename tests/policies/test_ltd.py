"""LTD: two small networks set depth and size of the tree."""

import math
from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.ltd import Ltd
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.trained_policy_rounds import constant, played


@pytest.mark.parametrize(("onward", "depth"), [(-1.0, 1), (1.0, 4)])
@pytest.mark.parametrize(("votes", "size"), [((1.0, 0.0, 0.0), 1), ((0.0, 0.0, 1.0), 4)])
def test_the_two_policies_set_depth_and_size(
    onward: float, depth: int, votes: tuple[float, ...], size: int, tmp_path: Path
) -> None:
    nets = {"depth": constant((12, 1), onward), "size": constant((5, 3), *votes)}
    MlpBundle("ltd", nets, {"sizes": [1, 2, 4], "deepest": 4}).save(tmp_path)
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")),
        Ltd(weights=str(tmp_path)),
        Match(),
        Fixed(nodes=9, depth=9, width=3),
    )
    outcome = played(recipe, 1)[0]
    assert outcome.grown.height == depth
    assert len(outcome.tree) - 1 == min(size, len(outcome.grown) - 1)
    assert sorted(outcome.tree.reach[1:]) == pytest.approx(sorted(outcome.grown.reach[1:])[-size:])


def test_the_depth_policy_stops_where_the_draft_grows_faint(tmp_path: Path) -> None:
    best = np.zeros((1, 12), np.float32)
    best[0, 0] = 1.0  # the likeliest node of the level
    line = NumpyMlp([best], [np.array([-math.log(0.2)], np.float32)], np.zeros(12), np.ones(12))
    MlpBundle(
        "ltd", {"depth": line, "size": constant((3, 1), 1.0)}, {"sizes": [99], "deepest": 9}
    ).save(tmp_path)
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")),
        Ltd(weights=str(tmp_path)),
        Match(),
        Fixed(nodes=99, depth=9, width=3),
    )
    for outcome in played(recipe, 10):
        tree = outcome.grown
        tops = [tree.reach[tree.level(depth)].max() for depth in range(1, tree.height + 1)]
        assert all(top > 0.2 for top in tops[:-1])
        assert tops[-1] <= 0.2 or tree.height == 9
