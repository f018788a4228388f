"""The exported lines of `binned` say what its chances say, before and after it has learnt."""

import numpy as np

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.estimators.binned import DEPTHS, RANKS, Binned, cells

SOURCE = 1


def learner(**options: float) -> Binned:
    binned = Binned(**options)
    binned.bind(EngineContext(ToyBackend(), flat(), no_loader))
    return binned


def drafted() -> Tree:
    """Two levels of one drafter's nodes, of several ranks and confidences."""
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3], [0.6, 0.3, 0.04], source=SOURCE)
    tree.extend(1, [1, 2], [0.95, 0.01], source=SOURCE)
    return tree


def by_lines(binned: Binned, tree: Tree) -> FloatArray:
    """Chances of all nodes besides the root, read off the exported lines."""
    lines = binned.lines(SOURCE).reshape(-1, RANKS, DEPTHS, 2)
    _, confidence, rank, depth = cells(tree, slice(1, None))
    constant, slope = lines[confidence, rank, depth].T
    found: FloatArray = constant + slope * tree.probs[1:]
    return found


def observe(binned: Binned, path: tuple[int, ...]) -> None:
    tree = drafted()
    scores = ToyOutput(np.zeros((1, 3)))
    binned.observe(Outcome(tree, tree, Verdict(path, 9), scores, context=5))


def test_lines_follow_every_observation() -> None:
    binned = learner()
    tree = drafted()
    seen = []
    for path in [(0, 1, 4), (0, 1), (0,), (0, 2), (0, 1, 5)]:
        np.testing.assert_allclose(by_lines(binned, tree), binned.chance(tree, 1), rtol=1e-12)
        seen.append(by_lines(binned, tree))
        observe(binned, path)
    np.testing.assert_allclose(by_lines(binned, tree), binned.chance(tree, 1), rtol=1e-12)
    assert len({tuple(each) for each in seen}) == len(seen)


def test_lines_follow_when_counts_are_halved() -> None:
    binned = learner(memory=3.0)
    tree = drafted()
    binned.lines(SOURCE)
    for _ in range(9):
        observe(binned, (0, 1))
    assert binned.trials.max() <= 4.0
    np.testing.assert_allclose(by_lines(binned, tree), binned.chance(tree, 1), rtol=1e-12)
    assert binned.chance(tree, 1)[0] > 0.75  # what is left of the hits went with the trials
