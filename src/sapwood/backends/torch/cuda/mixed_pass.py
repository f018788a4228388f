"""Passes that mix rows of trees and of prompts: their rows, and their few shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.pass_inputs import (
    COUNTS,
    LADDER,
    MAX_ROWS,
    PassRows,
    PassShape,
    RootRows,
    step_up,
    tiles_for,
    write_rows,
)
from sapwood.core.array_types import IntArray

LEAST = 16  # rows of the smallest pass with a chunk of a prompt
MANY_ROOTS = 4  # roots are many where they are at least one row in so many
SPARE = 8  # blocks besides those of the rows: prompts end inside a block


@dataclass(frozen=True, slots=True)
class RootsAndPrompts:
    """The roots of many sessions, one row each, then rows of prompts; a fast path of batches."""

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    roots: int
    firsts: IntArray  # first slot of each KV sequence: of roots, then of prompts
    lengths: IntArray
    prompts: list[int]  # rows of each

    @classmethod
    def of(cls, roots: RootRows, prompts: Sequence[tuple[IntArray, int, int]]) -> "RootsAndPrompts":
        """Rows of roots, and of prompts by tokens, first slot and length of their sequence."""
        spans = [length + np.arange(len(tokens)) for tokens, _, length in prompts]
        places = [first + span for span, (_, first, _) in zip(spans, prompts, strict=True)]
        return cls(
            np.concatenate([roots.tokens, *(tokens for tokens, _, _ in prompts)]),
            np.concatenate([roots.lengths, *spans]),
            np.concatenate([roots.firsts + roots.lengths, *places]),
            len(roots.tokens),
            np.append(roots.firsts, [first for _, first, _ in prompts]).astype(np.int64),
            np.append(roots.lengths, [length for _, _, length in prompts]).astype(np.int64),
            [len(tokens) for tokens, _, _ in prompts],
        )

    def shape(self, heads: HeadSizes) -> PassShape:
        """The shape of these rows."""
        pieces = [1] * self.roots + self.prompts
        return mixed_shape(len(self.tokens), pieces, self.roots, 1, heads, branches=False)

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        blocks, words = write_rows(shape, host, self.tokens, self.positions, self.slots)
        roots = self.roots
        blocks[0, :roots] = self.firsts[:roots]
        blocks[1, :roots] = self.lengths[:roots]
        blocks[2, :roots] = np.arange(roots)
        blocks[3:, :roots] = 1  # one row, one node, a chain
        block = row = roots
        each = shape.tiles.rows
        for number, count in enumerate(self.prompts, roots):
            for at in range(0, count, each):
                held = min(each, count - at)
                first, length = self.firsts[number], self.lengths[number]
                blocks[:, block] = first, length, row + at, held, count, 1
                block += 1
            row += count
        return shape.size + words.size


def mixed_shape(
    rows: int, pieces: Sequence[int], trees: int, words: int, heads: HeadSizes, *, branches: bool
) -> PassShape:
    """The shape of a pass over rows of trees and prompts; `pieces` are the rows of each session."""
    count = step_up(rows, LADDER)
    asked = min(step_up(trees, LADDER), count) if trees else 0
    small = MANY_ROOTS * asked >= count
    tiles = tiles_for(count, MAX_ROWS, 0, heads, branches, small=small)  # for texts of all lengths
    blocks = sum(-(-piece // tiles.rows) for piece in pieces)
    blocks = max(blocks, min(asked + count // tiles.rows + SPARE, MAX_ROWS))
    return PassShape(
        count,
        step_up(blocks, LADDER),
        step_up(words, COUNTS),
        asked > 0,
        tiles,
        trees=asked or None,
    )


def mixed_counts(requests: int) -> Iterator[tuple[int, int]]:
    """All rows, and those of trees, of a pass of each shape that so many requests may need."""
    most = step_up(min(requests, MAX_ROWS), LADDER)
    for count in LADDER:
        for trees in (0, *LADDER):
            if count >= LEAST and trees <= min(count, most):
                yield count, min(trees, count - 1)


def shape_of_rows(rows: PassRows, heads: HeadSizes, trees: int) -> PassShape:
    """The shape of rows of trees, `trees` of them, and then of prompts."""
    branches = not all(piece.chain for piece in rows.pieces)
    pieces = [piece.rows for piece in rows.pieces]
    words = rows.words.shape[1]
    return mixed_shape(len(rows.tokens), pieces, trees, words, heads, branches=branches)
