"""Rows of prompts in the pass of a round, behind those of its trees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.mixed_pass import mixed_shape
from sapwood.backends.torch.cuda.pass_inputs import PassShape, write_rows
from sapwood.core.array_types import IntArray


def shape_with_prompts(
    requests: int, each: int, chunks: Sequence[int], heads: HeadSizes
) -> PassShape:
    """The shape of a pass over trees of `each` rows and chunks of so many rows."""
    trees = requests * each
    pieces = [each] * requests + [*chunks]
    return mixed_shape(trees + sum(chunks), pieces, trees, 1, heads, branches=True)


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Chunks of prompts: tokens, first slot of the KV sequence, and its length."""

    chunks: Sequence[tuple[IntArray, int, int]]

    def __len__(self) -> int:
        return sum(len(tokens) for tokens, _, _ in self.chunks)

    def shape(self, requests: int, each: int, heads: HeadSizes) -> PassShape:
        """The shape of a pass over the trees of so many requests, `each` rows a tree, and these."""
        counts = [len(tokens) for tokens, _, _ in self.chunks]
        return shape_with_prompts(requests, each, counts, heads)

    def behind(self, requests: int, each: int) -> "PromptRowsBehind":
        """The same rows behind those of trees, which the device writes."""
        return PromptRowsBehind(self, requests, each)


@dataclass(frozen=True, slots=True)
class PromptRowsBehind:
    """Rows of prompts behind those of the trees of so many requests."""

    prompts: PromptRows
    requests: int
    each: int

    @property
    def tokens(self) -> IntArray:
        """Token of each row; 0 for those of trees."""
        blank = np.zeros(self.requests * self.each, np.int64)
        return np.concatenate([blank, *(tokens for tokens, _, _ in self.prompts.chunks)])

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        chunks = self.prompts.chunks
        row = self.requests * self.each
        spans = [length + np.arange(len(tokens)) for tokens, _, length in chunks]
        slots = [first + span for span, (_, first, _) in zip(spans, chunks, strict=True)]
        positions = np.concatenate([np.zeros(row, np.int64), *spans])
        places = np.concatenate([np.full(row, -1), *slots])
        blocks, words = write_rows(shape, host, self.tokens, positions, places)
        lines = shape.tiles.rows
        block = self.requests * -(-self.each // lines)
        for tokens, first, length in chunks:
            count = len(tokens)
            for at in range(0, count, lines):
                blocks[:, block] = first, length, row + at, min(lines, count - at), count, 1
                block += 1
            row += count
        return shape.size + words.size
