"""Trees from whole columns, and trees whose columns come to the host when they are read."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given

from sapwood.backends.torch.cuda.draft.device_tree import (
    PLACES,
    ROWS,
    DeviceTree,
    RoundBuffer,
    RoundUse,
    ints,
    reals,
    to_device_tree,
)
from sapwood.core.array_types import IntArray
from sapwood.core.tree import Tree
from tests.helpers.random_trees import COLUMNS, tree_strategy


def build(words: IntArray) -> Tree:
    return Tree.from_columns(
        ints(words, "tokens", 3),
        ints(words, "parents", 3),
        ints(words, "depths", 3),
        reals(words, "probs", 3),
        reach=reals(words, "reach", 3),
        kept=ints(words, "kept", 3),
    )


def fill(round_buffer: RoundBuffer, token: int) -> DeviceTree:
    """A root with two children on the device."""
    columns = {
        "tokens": [token, 7, 8],
        "parents": [-1, 0, 0],
        "depths": [0, 1, 1],
        "kept": [0, 2, 5],
    }
    for name, values in columns.items():
        round_buffer.field(name)[:3] = torch.tensor(values)
    for name in ("probs", "reach"):
        round_buffer.field(name)[:3] = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    return DeviceTree(RoundUse.begin(round_buffer, 1), 3, build)


def brought(tree: DeviceTree) -> bool:
    """True once the tree's words are on the host."""
    return tree.round_use.words is not None


@given(tree_strategy())
def test_columns_make_the_same_tree(tree: Tree) -> None:
    same = Tree.from_columns(
        tree.tokens.copy(),
        tree.parents.copy(),
        tree.depths.copy(),
        tree.probs.copy(),
        reach=tree.reach.copy(),
        ranks=tree.ranks.copy(),
        sources=tree.sources.copy(),
        expanded=tree.expanded.copy(),
    )
    for name in COLUMNS:
        if name != "sampled":
            assert np.array_equal(getattr(same, name), getattr(tree, name))
    assert not same.sampled.any()
    assert same.valued == len(tree)
    assert same.best(5).kept is not None
    assert np.array_equal(same.best(5).tokens, tree.best(5).tokens)


def test_a_tree_from_columns_grows_on_and_knows_its_children() -> None:
    tree = Tree.from_columns(
        np.array([5, 6]), np.array([-1, 0]), np.array([0, 1]), np.array([1.0, 0.5])
    )
    assert tree.sources.tolist() == [0, 1]
    assert tree.valued == 1
    assert tree.add(0, 6, 0.5, source=1) == 1  # the child is there: it gains a source and trust
    assert tree.sources[1] == 3
    assert tree.probs[1] == pytest.approx(0.75)
    assert tree.add(1, 9, 0.25) == 2
    assert tree.add(1, 9, 0.25, sampled=True) == 3
    assert tree.depths.tolist() == [0, 1, 2, 2]
    assert tree.spell(3) == [5, 6, 9]


def test_the_size_is_known_before_and_a_column_brings_all() -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    tree = fill(round_buffer, 4)
    assert len(tree) == 3
    assert tree.proposals == {}
    assert not brought(tree)
    assert tree.tokens.tolist() == [4, 7, 8]
    assert brought(tree)
    assert tree.parents.tolist() == [-1, 0, 0]
    assert tree.probs.tolist() == [1.0, 0.5, 0.25]
    assert tree.kept is not None
    assert tree.kept.tolist() == [0, 2, 5]
    assert tree.child(0, 8) == 2
    assert tree.add(2, 1, 0.1) == 3
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = tree.colour


def test_what_was_read_stays_and_what_was_not_is_gone() -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    read = fill(round_buffer, 4)
    unread = fill(round_buffer, 5)
    with pytest.raises(RuntimeError, match="read a column before the next round"):
        _ = read.tokens
    assert read.rows is None
    assert unread.rows is not None
    assert unread.rows.tokens[:3].tolist() == [5, 7, 8]
    unread.load()
    fill(round_buffer, 6)
    assert unread.tokens.tolist() == [5, 7, 8]
    assert unread.rows is None


def test_fields_do_not_overlap() -> None:
    spans = sorted((place.start, place.stop) for place in PLACES.values())
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))


@given(tree_strategy())
def test_a_tree_goes_aboard_as_it_is(tree: Tree) -> None:
    moved = to_device_tree(tree, torch.device("cpu"))
    rows = moved.rows
    assert rows is not None
    size = len(tree)
    assert len(moved) == size
    assert rows.tokens[:size].tolist() == tree.tokens.tolist()
    assert rows.parents[:size].tolist() == tree.parents.tolist()
    words = rows.words.numpy().view(np.uint8)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:size, :size]
    assert np.array_equal(bits.astype(bool), tree.ancestors())
    for name in COLUMNS:
        assert np.array_equal(getattr(moved, name), getattr(tree, name))


def test_a_tree_that_is_too_large_stays_ashore() -> None:
    tree = Tree(0)
    for token in range(ROWS):
        tree.add(0, token, 0.1)
    with pytest.raises(ValueError, match=f"does not fit the {ROWS} rows"):
        to_device_tree(tree, torch.device("cpu"))
