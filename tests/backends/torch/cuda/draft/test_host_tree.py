"""Trees on the host from the words that a draft has left: the grown tree and the one that is checked."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.device_tree import RoundBuffer, build_drafted, build_pruned
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.backends.torch.cuda.draft.reference import NODES, SCALARS
from sapwood.core.array_types import IntArray
from sapwood.core.tree import Tree

FORM = LevelSizes(depth=3, beam=2, width=3)
MARK = 1 << 4
OPENED = [2, 1, 5, 7]  # two nodes of each of the first two levels, in the order they were chosen


def grown() -> Tree:
    """The tree of the form, as drafted step by step."""
    tree = Tree(50)
    token = 0
    for parent in (0, *OPENED):
        for place in range(FORM.width):
            token += 1
            tree.add(parent, token, 0.5 / (1 + place), rank=place, source=4, sampled=True)
        tree.close(parent)
    tree.sampled[:] = False
    for node in range(1, len(tree)):
        tree.reach[node] = tree.reach[tree.parents[node]] * tree.probs[node]
    tree.valued = len(tree)
    return tree


def words_of(tree: Tree, nodes: int) -> IntArray:
    """What the device would send after growing and cutting this tree."""
    round_buffer = RoundBuffer(torch.device("cpu"))
    for name in ("tokens", "parents", "probs", "reach"):
        round_buffer.field(f"grown_{name}")[: len(tree)] = torch.from_numpy(getattr(tree, name))
    round_buffer.field("opened")[: len(OPENED)] = torch.tensor(OPENED)
    facts = torch.zeros(SCALARS, dtype=torch.int64)
    facts[NODES] = nodes
    depths, ranks = (torch.from_numpy(column) for column in (FORM.depths, FORM.ranks))
    reference.prune(round_buffer, facts, depths, ranks, FORM.depth)
    round_buffer.send()
    return round_buffer.host_array.copy()


def test_the_grown_tree_has_all_columns_of_the_drafted_one() -> None:
    tree = grown()
    assert len(tree) == FORM.size
    found = build_drafted(FORM, MARK, words_of(tree, 6))
    for name in ("tokens", "parents", "depths", "ranks", "probs", "reach", "expanded", "sources"):
        assert np.array_equal(getattr(found, name), getattr(tree, name)), name
    assert found.valued == len(tree)
    assert not found.sampled.any()


@pytest.mark.parametrize("nodes", [0, 1, 6, FORM.size - 1])
def test_the_checked_tree_is_cut_from_the_grown_one(nodes: int) -> None:
    tree = grown()
    found = build_pruned(FORM, nodes + 1, MARK, words_of(tree, nodes))
    order = sorted(range(len(tree)), key=lambda node: (-tree.reach[node], node))[: nodes + 1]
    wanted = tree.keep(sorted(order))
    assert len(found) == nodes + 1
    assert found.kept is not None
    assert wanted.kept is not None
    assert found.kept.tolist() == wanted.kept.tolist()
    for name in ("tokens", "parents", "depths", "ranks", "probs", "reach", "expanded", "sources"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name


def test_the_root_comes_from_no_drafter_and_is_expanded() -> None:
    words = words_of(grown(), 6)
    for tree in (build_drafted(FORM, MARK, words), build_pruned(FORM, 7, MARK, words)):
        assert tree.sources[0] == 0
        assert (tree.sources[1:] == MARK).all()
        assert tree.expanded[0]


def test_the_trees_can_be_grown_on() -> None:
    tree = build_pruned(FORM, 4, MARK, words_of(grown(), 3))
    node = tree.add(0, 99, 0.1, source=1)
    assert node == 4
    assert tree.child(0, 99) == 4
    assert tree.spell(node) == [50, 99]
