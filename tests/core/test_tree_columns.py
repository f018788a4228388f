"""A tree from whole columns, its defaults, its limit, and the best of its nodes."""

import numpy as np
import pytest

from sapwood.core.tree import CAPACITY, ROOT, Tree


def columns(**options: np.ndarray) -> Tree:
    """0 ── 1 ── 3, 0 ── 2."""
    return Tree.from_columns(
        np.array([5, 6, 7, 8]),
        np.array([-1, 0, 0, 1]),
        np.array([0, 1, 1, 2]),
        np.array([1.0, 0.5, 0.25, 0.5]),
        **options,
    )


def test_what_is_not_given_has_a_default() -> None:
    tree = columns()
    assert tree.reach.tolist() == [1.0] * 4
    assert tree.valued == 1
    assert tree.ranks.tolist() == [0] * 4
    assert tree.sources.tolist() == [0, 1, 1, 1]
    assert tree.sampled.tolist() == tree.expanded.tolist() == [False] * 4
    assert tree.kept is None


def test_what_is_given_is_taken() -> None:
    given = {
        "reach": np.array([1.0, 0.5, 0.25, 0.2]),
        "ranks": np.array([0, 0, 1, 0]),
        "sources": np.array([0, 2, 4, 2]),
        "expanded": np.array([True, False, False, False]),
        "kept": np.array([0, 3, 5, 9]),
    }
    tree = columns(**given)
    assert tree.valued == 4
    for name, value in given.items():
        assert getattr(tree, name).tolist() == value.tolist()


def test_a_chosen_child_is_found_again_in_columns_and_a_drawn_one_is_not() -> None:
    tree = columns()
    assert tree.add(ROOT, 7, 0.5, source=1) == 2
    assert len(tree) == 4
    assert tree.sources[2] == 0b11
    assert tree.probs[2] == pytest.approx(0.25 + 0.75 * 0.5)
    cut = grown_by_draws().keep([1])
    assert cut.add(ROOT, 6, 0.5) == 2  # the twin was drawn: a chosen one is another node


def grown_by_draws() -> Tree:
    tree = Tree(5)
    tree.add(ROOT, 6, 0.5, sampled=True)
    return tree


def test_of_twins_the_first_is_found() -> None:
    tree = Tree.from_columns(
        np.array([5, 6, 6]), np.array([-1, 0, 0]), np.array([0, 1, 1]), np.ones(3)
    )
    assert tree.add(ROOT, 6, 0.5) == 1


@pytest.mark.parametrize("capacity", [1, 64, CAPACITY, 2 * CAPACITY])
def test_a_tree_holds_no_more_than_its_limit(capacity: int) -> None:
    tree = Tree(0, capacity)
    for token in range(CAPACITY - 1):
        tree.add(ROOT, token, 0.1, sampled=True)
    assert len(tree) == CAPACITY
    with pytest.raises(ValueError, match="at most 1024 nodes"):
        tree.add(ROOT, 0, 0.1, sampled=True)


@pytest.mark.parametrize(
    ("count", "kept"), [(-1, [0]), (0, [0]), (1, [0, 1]), (2, [0, 1, 3]), (9, [0, 1, 2, 3])]
)
def test_the_best_nodes_are_those_of_largest_reach(count: int, kept: list[int]) -> None:
    tree = columns(reach=np.array([1.0, 0.5, 0.25, 0.4])).best(count)
    assert tree.kept is not None
    assert tree.kept.tolist() == kept
    assert tree.tokens.tolist() == [5 + node for node in kept]
    assert tree.parents.tolist()[1:] == [{1: 0, 2: 0, 3: kept.index(1)}[n] for n in kept[1:]]


@pytest.mark.parametrize(("kept", "valued"), [([1, 3], 2), ([2], 2), ([1, 2, 3], 3)])
def test_a_cut_is_valued_as_far_as_the_whole_tree_was(kept: list[int], valued: int) -> None:
    tree = columns()
    tree.valued = 3  # all but the last node
    assert tree.keep(kept).valued == valued


def test_a_node_is_not_kept_without_its_parent() -> None:
    with pytest.raises(ValueError, match="node 3 cannot be kept without its parent 1"):
        columns().keep([2, 3])


def test_paths_begin_at_the_root() -> None:
    tree = columns()
    assert [tree.path(node) for node in range(4)] == [[0], [0, 1], [0, 2], [0, 1, 3]]
    assert tree.spell(3) == [5, 6, 8]
    assert tree.height == 2
