"""Estimators: raw repeats the drafter, binned learns from what was accepted."""

import math

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.estimators.binned import DEPTHS, EDGES, RANKS, Binned, cells
from sapwood.estimators.leader import Leader
from sapwood.estimators.ranked import Ranked
from sapwood.estimators.raw import Raw

SETTING = EngineContext(ToyBackend(), flat(), no_loader)
SCORES = ToyOutput(np.zeros((1, 3)))


def learner(**options: float) -> Binned:
    binned = Binned(**options)
    binned.bind(SETTING)
    return binned


def outcome(
    grown: Tree, path: tuple[int, ...], bonus: int, kept: list[int] | None = None
) -> Outcome:
    """A finished round; `path` is in the numbering of the tree that was checked."""
    tree = grown if kept is None else grown.keep(kept)
    return Outcome(grown, tree, Verdict(path, bonus), SCORES, context=5)


def pair(probs: tuple[float, float] = (0.6, 0.3), source: int = 0) -> Tree:
    """Two chosen children of the root, tokens 1 and 2."""
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], list(probs), source=source)
    return tree


def first(binned: Binned, tree: Tree) -> FloatArray:
    return binned.chance(tree, 1)


def test_raw_repeats_the_drafter() -> None:
    assert Raw().chance(pair(), 1).tolist() == [0.6, 0.3]
    assert Raw().chance(pair(), 2).tolist() == [0.3]
    assert Raw().chance(Tree(0), 1).tolist() == []


def test_ranked_counts_by_depth_and_rank_alone() -> None:
    ranked = Ranked(prior=2.0)
    ranked.bind(SETTING)
    assert ranked.chance(pair(), 1) == pytest.approx([0.6, 0.3])
    for bonus in (1, 2, 2, 2):
        ranked.observe(outcome(pair(), (0,), bonus))
    # one of four, three of four; two trials of the drafter's own words
    for probs, source in (((0.6, 0.3), 0), ((0.1, 0.9), 3)):
        wanted = [(1 + 2 * probs[0]) / 6, (3 + 2 * probs[1]) / 6]
        assert ranked.chance(pair(probs, source), 1) == pytest.approx(wanted)
    deeper = pair()
    deeper.extend(1, [1, 2], [0.5, 0.2])
    assert ranked.chance(deeper, 3) == pytest.approx([0.5, 0.2])  # depths are counted apart
    assert ranked.export_table() is None


def test_ranked_forgets_the_oldest_counts() -> None:
    ranked = Ranked(memory=4.0)
    ranked.bind(SETTING)
    for _ in range(40):
        ranked.observe(outcome(pair(), (0,), 1))
    assert ranked.trials.max() <= 5.0
    assert ranked.hits[0, 0] == ranked.trials[0, 0]
    ranked.observe(outcome(Tree(0), (0,), 1))


def test_binned_begins_with_the_drafters_words() -> None:
    assert first(learner(), pair()) == pytest.approx([0.6, 0.3])
    assert learner().chance(pair(), 2) == pytest.approx([0.3])


def test_binned_converges_to_the_true_rates() -> None:
    random = np.random.default_rng(0)
    binned = learner()
    rates = [
        0.75,
        0.1,
    ]  # of the first and the second child, which the drafter holds for 0.6 and 0.3
    for _ in range(1500):
        choice = random.choice(3, p=[*rates, 0.15])
        binned.observe(
            outcome(pair(), (0,), 9) if choice == 2 else outcome(pair(), (0, int(choice) + 1), 9)
        )
    assert first(binned, pair()) == pytest.approx(rates, abs=0.03)


def test_sources_ranks_and_depths_are_told_apart() -> None:
    binned = learner()
    for _ in range(300):
        binned.observe(outcome(pair((0.6, 0.6)), (0, 1), 9))  # rank 0 always, rank 1 never
        binned.observe(
            outcome(pair((0.6, 0.6), source=1), (0, 2), 9)
        )  # the other way round for source 1
    assert first(binned, pair((0.6, 0.6))) == pytest.approx([1, 0], abs=0.05)
    assert first(binned, pair((0.6, 0.6), source=1)) == pytest.approx([0, 1], abs=0.05)
    assert first(binned, pair((0.6, 0.6), source=2)) == pytest.approx(
        [0.6, 0.6]
    )  # nothing learnt here
    both = pair((0.6, 0.6))
    both.extend(ROOT, [1], [0.6], source=1)
    assert first(binned, both)[0] == pytest.approx(
        0.84
    )  # agreement is a source of its own: 0.6 or else 0.6


def test_depth_matters_where_it_was_seen() -> None:
    binned = learner()
    for _ in range(300):
        tree = Tree(0)
        deep = tree.add(tree.add(ROOT, 1, 0.6), 1, 0.6)
        assert deep == 2
        binned.observe(outcome(tree, (0, 1), 9))  # the first level always, the second never
    assert first(binned, tree) == pytest.approx([1, 0], abs=0.05)


def test_unchecked_children_of_the_accepted_path_count() -> None:
    # token 2 was drafted, cut before the check, and the target said it: a hit; token 1 was refused
    binned = learner(fine=1e-9, coarse=1e-9)
    grown = pair()
    binned.observe(outcome(grown, (0,), bonus=2, kept=[1]))
    assert first(binned, grown) == pytest.approx([0, 1], abs=1e-6)


def test_nodes_whose_parent_was_refused_say_nothing() -> None:
    grown = pair()
    below = grown.add(1, 5, 0.5)
    round_ = outcome(grown, (0, 2), bonus=7)
    hit, tried = round_.verified_nodes()
    assert tried.tolist() == [False, True, True, False]
    assert hit[1:].tolist() == [False, True, False]
    binned = learner()
    binned.observe(round_)
    assert binned.trials.sum() == 2
    assert binned.chance(grown, below) == pytest.approx([0.5])


def test_kept_indices_are_translated() -> None:
    grown = Tree(0)
    grown.extend(ROOT, [1, 2, 3], [0.5, 0.3, 0.2])
    grown.add(3, 4, 0.9)
    # node 3 of the draft is node 1 of the verified tree
    hit, tried = outcome(grown, (0, 1), bonus=4, kept=[3]).verified_nodes()
    assert tried.tolist() == [False, True, True, True, True]
    assert hit[1:].tolist() == [False, False, True, True]


def test_a_thin_cell_leans_on_the_coarse_one_and_that_on_the_drafter() -> None:
    binned = learner(coarse=4.0, fine=8.0)
    tree = Tree(0)
    node = tree.add(ROOT, 1, 0.6)
    for _ in range(4):
        binned.observe(outcome(tree, (0, node), 9))
    rough = (4 + 4 * 0.6) / (4 + 4)
    assert first(binned, tree) == pytest.approx([(4 + 8 * rough) / (4 + 8)])
    other = Tree(0)
    other.add(
        ROOT, 1, 0.6, rank=3
    )  # same source and confidence, another rank: the coarse cell alone
    assert first(binned, other) == pytest.approx([rough])


def test_old_counts_fade() -> None:
    binned = learner(memory=50.0)
    tree = pair()
    for _ in range(300):
        binned.observe(outcome(tree, (0, 1), 9))
    for _ in range(120):
        binned.observe(outcome(tree, (0, 2), 9))
    assert binned.trials.max() <= 50
    assert first(binned, tree) == pytest.approx([0, 1], abs=0.2)


def test_plain_rounds_teach_nothing() -> None:
    binned = learner()
    binned.observe(outcome(Tree(0), (0,), 4))
    assert binned.trials.sum() == 0


def test_first_choices_are_trusted_more_the_others_as_they_are() -> None:
    tree = Tree(0)
    tree.extend(0, [1, 2, 3], [0.5, 0.3, 0.2])
    tree.extend(1, [4], [0.9])
    tree.extend(2, [5], [0.01])
    found = Leader(lean=0.3).chance(tree, 1)
    assert found == pytest.approx([0.5**0.7, 0.3, 0.2, 0.9**0.7, 0.01 * math.exp(0.3)])
    assert Leader(lean=0.0).chance(tree, 1) == pytest.approx(tree.probs[1:])
    assert (Leader(lean=1.0).chance(tree, 1) <= 1).all()


def test_the_lines_of_leader_follow_its_curve() -> None:
    leader = Leader()
    probs = np.linspace(0.001, 1, 400)
    tree = Tree(0)
    for prob in probs:
        tree.add(0, len(tree), float(prob), rank=0)
    tree.add(0, 999, 0.4, rank=2)
    where = np.ravel_multi_index(cells(tree, slice(1, None))[1:], (len(EDGES) + 1, RANKS, DEPTHS))
    lines = leader.lines(0)[where]
    assert lines[:, 0] + lines[:, 1] * tree.probs[1:] == pytest.approx(
        leader.chance(tree, 1), abs=0.01
    )
