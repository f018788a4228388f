"""Shapes of passes that mix trees and prompts: few, captured before, and large enough."""

import numpy as np
import pytest

from sapwood.backends.torch.cuda.kernels.attention_tiles import FIELDS, HeadSizes
from sapwood.backends.torch.cuda.mixed_pass import (
    RootsAndPrompts,
    mixed_counts,
    mixed_shape,
    shape_of_rows,
)
from sapwood.backends.torch.cuda.pass_inputs import MAX_ROWS, PassRows, RootRows, SessionRows

HEADS = HeadSizes(9, 3, 64)
MOST = 64  # requests that share a pass


def mix(rng: np.random.Generator) -> RootsAndPrompts:
    """Roots of some sessions, and chunks of some prompts."""
    roots = int(rng.integers(0, MOST + 1))
    left = int(rng.integers(16, MAX_ROWS - MOST))
    prompts = []
    for _ in range(rng.integers(1, 5)):
        count = int(rng.integers(1, max(left // 2, 2)))
        tokens = rng.integers(100, size=count)
        prompts.append((tokens, int(rng.integers(9)) * 4096, int(rng.integers(3000))))
    found = RootRows(
        rng.integers(100, size=roots),
        4096 * np.arange(roots),
        rng.integers(1, 3000, size=roots),
    )
    return RootsAndPrompts.of(found, prompts)


def captured() -> set[object]:
    """The shapes that are captured before the first request."""
    return {
        mixed_shape(count, [1] * trees + [count - trees], trees, 1, HEADS, branches=False)
        for count, trees in mixed_counts(MOST)
    }


def test_passes_of_roots_and_prompts_have_captured_shapes() -> None:
    rng = np.random.default_rng(0)
    known = captured()
    mixes = [mix(rng) for _ in range(300)]
    met = {one.shape(HEADS) for one in mixes if 16 <= len(one.tokens) <= MAX_ROWS}
    assert met <= known
    assert len(known) < 80


@pytest.mark.parametrize("seed", range(5))
def test_the_fast_path_writes_what_the_general_one_does(seed: int) -> None:
    rows = mix(np.random.default_rng(seed))
    pieces = [
        SessionRows(row, 1, int(first), int(length), 1, True)
        for row, (first, length) in enumerate(
            zip(rows.firsts[: rows.roots], rows.lengths[: rows.roots], strict=True)
        )
    ]
    at = rows.roots
    for number, count in enumerate(rows.prompts, rows.roots):
        first, length = int(rows.firsts[number]), int(rows.lengths[number])
        pieces.append(SessionRows(at, count, first, length, count, True))
        at += count
    words = np.zeros((len(rows.tokens), 1), np.int64)
    general = PassRows(rows.tokens, rows.positions, rows.slots, pieces, words)
    shape = rows.shape(HEADS)
    assert shape_of_rows(general, HEADS, rows.roots) == shape
    size = shape.size + shape.rows * shape.words
    one, two = np.full((2, size + 7), -7)
    assert rows.write(shape, one) == general.write(shape, two) == size
    assert np.array_equal(one, two)
    blocks = one[3 * shape.rows : shape.size].reshape(FIELDS, shape.blocks)
    assert blocks[3].sum() == len(rows.tokens)  # every row is in one block


def test_logits_are_computed_for_trees_alone() -> None:
    shape = mixed_shape(100, [1] * 5 + [95], 5, 1, HEADS, branches=False)
    assert (shape.rows, shape.logit_rows, shape.keeps_states) == (128, 8, True)
    prompts = mixed_shape(100, [100], 0, 1, HEADS, branches=False)
    assert (prompts.logit_rows, prompts.keeps_states) == (0, True)
