"""Trees: what is stored, what is derived, and what survives a cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.core.tree import CAPACITY, ROOT, Tree
from tests.helpers.random_trees import COLUMNS, tree_strategy


def climb(tree: Tree, node: int) -> list[int]:
    """The path by its definition: from the node up through the parents."""
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    return path


@given(tree_strategy())
def test_parents_come_first_and_depth_counts_them(tree: Tree) -> None:
    assert tree.parents[ROOT] == -1
    assert (tree.parents[1:] < np.arange(1, len(tree))).all()
    assert tree.depths.tolist() == [len(climb(tree, node)) - 1 for node in range(len(tree))]
    assert tree.height == max(tree.depths)
    assert [node for depth in range(tree.height + 1) for node in tree.level(depth)] == sorted(
        range(len(tree)), key=lambda node: (tree.depths[node], node)
    )


@given(tree_strategy())
def test_path_spell_and_ancestors_agree_with_climbing(tree: Tree) -> None:
    mask = tree.ancestors()
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        path = climb(tree, node)
        assert tree.path(node) == path
        assert tree.spell(node) == [int(tree.tokens[step]) for step in path]
        assert np.flatnonzero(mask[node]).tolist() == path


@given(tree_strategy())
def test_children_are_listed_in_order_and_found_by_token(tree: Tree) -> None:
    for node in range(len(tree)):
        children = [other for other in range(1, len(tree)) if tree.parents[other] == node]
        assert tree.children(node) == children
        for token in range(10):
            expected = [child for child in children if tree.tokens[child] == token]
            assert tree.child(node, token) == (expected[0] if expected else None)


@given(tree_strategy(), st.data())
def test_keep_carries_every_column_over(tree: Tree, data: st.DataObject) -> None:
    leaves = data.draw(st.lists(st.integers(0, len(tree) - 1), max_size=5))
    order = sorted({ROOT, *(node for leaf in leaves for node in tree.path(leaf))})
    cut = tree.keep(order)
    assert cut.kept is not None
    assert cut.kept.tolist() == order
    for name in COLUMNS:
        assert np.array_equal(getattr(cut, name), getattr(tree, name)[order]), name
    assert [order[parent] for parent in cut.parents[1:]] == tree.parents[order[1:]].tolist()
    assert [cut.spell(new) for new in range(len(cut))] == [tree.spell(old) for old in order]
    assert cut.valued == len(cut)
    for (node, source), full_probs in cut.proposals.items():
        assert full_probs is tree.proposals[order[node], source]
    assert len(cut.proposals) == sum(node in order for node, _ in tree.proposals)


@given(tree_strategy(), st.data())
def test_keep_refuses_a_node_without_its_parent(tree: Tree, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(tree) - 1)))
    closed = all(node == ROOT or int(tree.parents[node]) in chosen | {ROOT} for node in chosen)
    if closed:
        assert len(tree.keep(chosen)) == len(chosen | {ROOT})
    else:
        with pytest.raises(ValueError, match=r"cannot be kept without its parent"):
            tree.keep(chosen)


@given(tree_strategy(), st.integers(-1, 45))
def test_best_keeps_a_tree_of_largest_reach_whatever_the_ties(tree: Tree, count: int) -> None:
    cut = tree.best(count)  # raises if a child outranked its parent
    size = max(0, min(count, len(tree) - 1))
    assert len(cut) == size + 1
    assert sorted(cut.reach[1:])[::-1] == sorted(tree.reach[1:])[::-1][:size]


def test_best_keeps_a_tree_where_hundreds_of_nodes_tie() -> None:
    random = np.random.default_rng(0)
    tree = Tree(0)
    for _ in range(600):
        parent = int(random.integers(max(0, len(tree) - 20), len(tree)))
        tree.add(parent, 0, 1.0, sampled=True)
    tree.reach[:] = 0.5 ** (tree.depths // 8)
    for count in range(0, 600, 7):
        cut = tree.best(count)
        assert sorted(cut.reach) == sorted(tree.reach)[-len(cut) :]


@given(tree_strategy())
def test_growing_leaves_a_cut_alone(tree: Tree) -> None:
    cut = tree.keep(range(len(tree)))
    before = cut.tokens.tolist()
    tree.add(ROOT, 99, 0.5, sampled=True)
    assert cut.tokens.tolist() == before
    cut.add(ROOT, 98, 0.5, sampled=True)
    assert tree.tokens[-1] == 99


@pytest.mark.parametrize("capacity", [1, 64, 100, 4096])
def test_capacity_grows_to_the_limit_and_no_further(capacity: int) -> None:
    tree = Tree(7, capacity=capacity)
    for node in range(1, CAPACITY):
        assert (
            tree.add(node - 1, node % 5, 0.5, rank=node % 3, source=1, sampled=bool(node % 2))
            == node
        )
        tree.close(node - 1)
    assert len(tree) == CAPACITY
    assert tree.tokens.tolist() == [7, *(node % 5 for node in range(1, CAPACITY))]
    assert tree.parents.tolist() == list(range(-1, CAPACITY - 1))
    assert tree.depths.tolist() == list(range(CAPACITY))
    assert tree.sampled.tolist() == [False, *(bool(node % 2) for node in range(1, CAPACITY))]
    assert tree.expanded.tolist() == [True] * (CAPACITY - 1) + [False]
    with pytest.raises(ValueError, match=r"at most 1024 nodes; lower the budget"):
        tree.add(ROOT, 1, 0.5, sampled=True)


def test_chosen_twins_become_one_node_of_several_sources() -> None:
    tree = Tree(0)
    first = tree.extend(ROOT, [4, 5], [0.6, 0.3], source=0)
    second = tree.extend(ROOT, [5, 6], [0.5, 0.4], source=2)
    assert first == [1, 2]
    assert second == [2, 3]
    assert tree.sources.tolist() == [0, 0b001, 0b101, 0b100]
    assert tree.probs.tolist() == pytest.approx([1.0, 0.6, 0.65, 0.4])  # 0.3, or else 0.5
    assert tree.ranks.tolist() == [0, 0, 1, 1]


def test_sampled_twins_stay_apart() -> None:
    tree = Tree(0)
    drawn = [tree.add(ROOT, 4, 0.6, rank=slot, source=1, sampled=True) for slot in range(2)]
    chosen = tree.add(ROOT, 4, 0.6)
    assert [*drawn, chosen] == [1, 2, 3]
    assert tree.sources.tolist() == [0, 2, 2, 1]
    assert tree.add(ROOT, 4, 0.1, sampled=True) == 4


def test_a_chosen_twin_is_found_behind_a_sampled_one() -> None:
    tree = Tree(0)
    tree.add(ROOT, 4, 0.6, source=1, sampled=True)
    chosen = tree.add(ROOT, 4, 0.5)
    assert tree.add(ROOT, 4, 0.5, source=2) == chosen


def test_the_law_of_a_sampled_child_is_its_sources() -> None:
    tree = Tree(0)
    all_probs = [np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    for source, full_probs in enumerate(all_probs):
        tree.proposals[ROOT, source] = full_probs
        tree.add(ROOT, source, 1.0, source=source, sampled=True)
    assert [tree.proposal(ROOT, child) for child in (1, 2)] == all_probs
    cut = tree.keep([2])
    assert cut.proposal(ROOT, 1) is all_probs[1]


@settings(max_examples=20)
@given(tree_strategy(most=10))
def test_the_same_tokens_twice_add_nothing(tree: Tree) -> None:
    chosen = Tree(0)
    for node in range(1, len(tree)):
        chosen.extend(ROOT, [int(tree.tokens[node])], [0.1])
    assert len(chosen) == 1 + len(set(tree.tokens[1:].tolist()))


def test_a_root_alone_is_the_tree_of_its_root_and_can_grow() -> None:
    fast, slow = Tree.of_root(7), Tree(7)
    for tree in (fast, slow):
        assert tree.child(ROOT, 3) is None
        assert tree.add(ROOT, 3, 0.5) == 1
        assert tree.add(1, 4, 0.25) == 2
        tree.close(ROOT)
    for name in ("tokens", "parents", "depths", "ranks", "sources", "probs", "reach", "expanded"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert Tree.of_root(8).tokens.tolist() == [8]
    assert Tree.of_root(8).expanded.tolist() == [False]
