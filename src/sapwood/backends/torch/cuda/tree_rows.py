"""Rows of the whole trees of many sessions, whose columns are on the host; a fast path."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sapwood.backends.torch.cuda.kernels.attention_tiles import WORD, HeadSizes
from sapwood.backends.torch.cuda.pass_inputs import (
    LADDER,
    MAX_ROWS,
    PassShape,
    ancestor_words,
    bucket,
    step_up,
    tiles_for,
    write_rows,
)
from sapwood.core.array_types import IntArray
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree


@dataclass(frozen=True, slots=True)
class ManyTrees:
    """Whole trees of at most WORD nodes each."""

    trees: Sequence[Tree]
    tokens: IntArray  # of all nodes
    sizes: IntArray  # nodes of each tree
    firsts: IntArray  # first slot of each KV sequence
    lengths: IntArray  # committed tokens of each

    @classmethod
    def of(cls, trees: Sequence[Tree], firsts: IntArray, lengths: IntArray) -> "ManyTrees":
        """Rows of trees, by first slot and length of their sequences."""
        tokens = np.concatenate([tree.tokens for tree in trees])
        sizes = np.array([len(tree) for tree in trees])
        return cls(trees, tokens, sizes, firsts, lengths)

    def shape(self, head: bool, heads: HeadSizes) -> PassShape:
        """The smallest shape that holds them."""
        rows = step_up(len(self.tokens), LADDER)
        longest = bucket(int(self.lengths.max()))
        found = shape_of_trees(rows, longest, head, heads, sparse=False)
        if int(self._blocks(found).sum()) <= found.blocks:
            return found
        return shape_of_trees(rows, longest, head, heads, sparse=True)

    def _blocks(self, shape: PassShape) -> IntArray:
        """Number of blocks of each tree."""
        return -(-self.sizes // shape.tiles.rows)

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        ends = np.cumsum(self.sizes)
        starts = ends - self.sizes
        lengths = np.repeat(self.lengths, self.sizes)
        depths = np.concatenate([tree.depths for tree in self.trees])
        nodes = np.arange(len(self.tokens)) - np.repeat(starts, self.sizes)
        slots = np.repeat(self.firsts, self.sizes) + lengths + nodes
        blocks, words = write_rows(shape, host, self.tokens, lengths + depths, slots)
        each = shape.tiles.rows
        counts = self._blocks(shape)
        used = int(counts.sum())
        cuts = each * (np.arange(used) - np.repeat(np.cumsum(counts) - counts, counts))
        chains = [int(tree.depths[-1]) == len(tree) - 1 for tree in self.trees]
        blocks[0, :used] = np.repeat(self.firsts, counts)
        blocks[1, :used] = np.repeat(self.lengths, counts)
        blocks[2, :used] = np.repeat(starts, counts) + cuts
        blocks[3, :used] = np.minimum(np.repeat(self.sizes, counts) - cuts, each)
        blocks[4, :used] = np.repeat(self.sizes, counts)
        blocks[5, :used] = np.repeat(chains, counts)
        seen = [
            (0,) * len(tree) if chain else ancestor_words(tree.parents.tolist())
            for tree, chain in zip(self.trees, chains, strict=True)
        ]
        words[: len(self.tokens), 0] = list(itertools.chain.from_iterable(seen))
        return shape.size + words.size


@cache
def shape_of_trees(
    rows: int, longest: int, head: bool, heads: HeadSizes, *, sparse: bool
) -> PassShape:
    """The shape of so many rows of trees; if `sparse`, each block may hold a single row.

    Else the blocks are half full at least: there are fewer, and programs of blocks that hold
    nothing take time as well.
    """
    lines = tiles_for(rows, rows, longest, heads, True, WORD).rows
    tiles = tiles_for(rows, -(-rows // lines), longest, heads, True, WORD)
    blocks = rows if sparse else -(-2 * rows // tiles.rows)
    return PassShape(rows, min(blocks, rows), 1, head, tiles)


def are_small(work: Sequence[TreeInput]) -> bool:
    """True for whole trees that one ancestor word can describe, in one pass."""
    return sum(len(job.tree) for job in work) <= MAX_ROWS and all(
        not job.since and job.lookahead is None and len(job.tree) <= WORD for job in work
    )
