"""Rows of the trees of many sessions: the same inputs as those of the general way."""

import numpy as np
import pytest

from sapwood.backends.torch.cuda.kernels.attention_tiles import FIELDS, WORD, HeadSizes
from sapwood.backends.torch.cuda.pass_inputs import (
    LADDER,
    PassRows,
    SessionRows,
    ancestor_words,
    bucket,
    step_up,
)
from sapwood.backends.torch.cuda.tree_rows import ManyTrees, are_small, shape_of_trees
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree

HEADS = HeadSizes(9, 3, 64)


def tree_of(rng: np.random.Generator, nodes: int, *, chain: bool) -> Tree:
    """A random tree, or a chain."""
    tree = Tree(int(rng.integers(100)))
    for token in range(1, nodes):
        parent = len(tree) - 1 if chain else int(rng.integers(len(tree)))
        tree.add(parent, 100 + token, 0.5)
    return tree


def general(rows: ManyTrees) -> PassRows:
    """The same rows, by session."""
    pieces = []
    words = []
    positions = []
    slots = []
    start = 0
    for tree, first, length in zip(rows.trees, rows.firsts, rows.lengths, strict=True):
        size = len(tree)
        chain = int(tree.depths[-1]) == size - 1
        pieces.append(SessionRows(start, size, int(first), int(length), size, chain))
        words += [0] * size if chain else list(ancestor_words(tree.parents.tolist()))
        positions += (length + tree.depths).tolist()
        slots += [int(first + length) + node for node in range(size)]
        start += size
    return PassRows(
        rows.tokens, np.array(positions), np.array(slots), pieces, np.array(words)[:, None]
    )


@pytest.mark.parametrize("seed", range(6))
def test_inputs_are_those_of_the_general_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 12))
    trees = [
        tree_of(rng, int(rng.integers(1, 40)), chain=bool(rng.integers(2))) for _ in range(count)
    ]
    lengths = rng.integers(1, 3000, count)
    rows = ManyTrees.of(trees, 4096 * np.arange(count), lengths)
    shape = rows.shape(True, HEADS)
    size = shape.size + shape.rows * shape.words
    one, two = np.full((2, size + 7), -7)
    assert rows.write(shape, one) == general(rows).write(shape, two) == size
    assert np.array_equal(one, two)
    blocks = one[3 * shape.rows : shape.size].reshape(FIELDS, shape.blocks)
    assert blocks[3].sum() == len(rows.tokens)  # every row is in one block


@pytest.mark.parametrize("rows", LADDER[1:])
def test_the_shape_depends_on_rows_and_lengths_alone(rows: int) -> None:
    """So that few passes are captured; it has blocks enough even for trees of a root alone."""
    shape = shape_of_trees(rows, bucket(700), True, HEADS, sparse=True)
    assert shape.rows == shape.blocks == step_up(rows, LADDER)
    assert shape.words == 1


@pytest.mark.parametrize("longest", [512, 4096])
@pytest.mark.parametrize("nodes", [1, 2, 5, 16])
def test_trees_that_fill_their_blocks_have_fewer_of_them(nodes: int, longest: int) -> None:
    """A program that has nothing to do takes time too: 192 rows took three times as long as 128."""
    rng = np.random.default_rng(0)
    count = 192 // nodes
    trees = [tree_of(rng, nodes, chain=False) for _ in range(count)]
    shape = ManyTrees.of(trees, np.zeros(count, np.int64), np.full(count, longest)).shape(
        True, HEADS
    )
    assert shape.tiles.rows == 4  # of 16 lines, four for the three queries of a row
    assert shape.tiles.warps == 4
    used = count * -(-nodes // shape.tiles.rows)
    assert used <= shape.blocks
    assert shape.blocks == (-(-2 * shape.rows // shape.tiles.rows) if nodes > 1 else shape.rows)


def test_large_trees_and_parts_of_trees_go_the_general_way() -> None:
    rng = np.random.default_rng(0)
    session: object = object()

    def job(nodes: int, since: int = 0) -> TreeInput:
        return TreeInput(session, tree_of(rng, nodes, chain=False), since)  # type: ignore[arg-type]

    assert are_small([job(3), job(WORD)])
    assert not are_small([job(3), job(WORD + 1)])
    assert not are_small([job(3), job(5, 2)])
    assert not are_small([job(60)] * 9)
