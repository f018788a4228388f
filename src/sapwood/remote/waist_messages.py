"""Calls of the waist as messages: trees and chunks of a pass, by the numbers of their sessions."""

from collections.abc import Sequence

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.tree import CAPACITY, Tree
from sapwood.remote.messages import LinkError, RemoteMessage

NumberedTree = tuple[int, Tree, int]  # session, tree, first node to score
NumberedChunk = tuple[int, Sequence[int]]  # session, tokens of a prompt


def score_message(
    output: int, trees: Sequence[NumberedTree], chunks: Sequence[NumberedChunk]
) -> RemoteMessage:
    """One pass as a message; `output` numbers its results."""
    arrays = {
        "sessions": integers([number for number, _, _ in trees]),
        "sizes": integers([len(tree) for _, tree, _ in trees]),
        "since": integers([since for _, _, since in trees]),
        "tokens": joined([tree.tokens for _, tree, _ in trees]),
        "parents": joined([tree.parents for _, tree, _ in trees]),
        "readers": integers([number for number, _ in chunks]),
        "lengths": integers([len(tokens) for _, tokens in chunks]),
        "texts": integers([token for _, tokens in chunks for token in tokens]),
    }
    return RemoteMessage("score", {"output": output}, arrays)


def read_score(message: RemoteMessage) -> tuple[list[NumberedTree], list[NumberedChunk]]:
    """Trees and chunks of a pass, which are checked."""
    tokens, parents = message.integers("tokens"), message.integers("parents")
    texts = message.integers("texts")
    numbers, sizes = message.integers("sessions"), message.integers("sizes")
    since = message.integers("since")
    readers, lengths = message.integers("readers"), message.integers("lengths")
    if (
        not len(numbers) == len(sizes) == len(since)
        or len(readers) != len(lengths)
        or len(tokens) != len(parents)
        or sum(sizes) != len(tokens)
        or sum(lengths) != len(texts)
        or min([*sizes, 1]) < 1
        or min([*lengths, 0]) < 0
    ):
        raise LinkError("a score message has arrays of different lengths")
    trees: list[NumberedTree] = []
    start = 0
    for number, size, first in zip(numbers, sizes, since, strict=True):
        tree = read_tree(tokens[start : start + size], parents[start : start + size])
        trees.append((number, tree, first))
        start += size
    chunks: list[NumberedChunk] = []
    start = 0
    for number, size in zip(readers, lengths, strict=True):
        chunks.append((number, texts[start : start + size]))
        start += size
    return trees, chunks


def read_tree(tokens: Sequence[int], parents: Sequence[int]) -> Tree:
    """A tree from tokens and parents, which are checked."""
    count = len(tokens)
    ordered = all(0 <= parent < node for node, parent in enumerate(parents) if node)
    if not 0 < count <= CAPACITY or parents[0] != -1 or not ordered:
        raise LinkError("a score message has a tree that is none")
    tree = Tree(tokens[0], capacity=count)
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        tree.add(parent, token, 1.0, sampled=True)
    return tree


def integers(numbers: Sequence[int]) -> IntArray:
    """Numbers as an array."""
    return np.array(numbers, np.int64)


def joined(columns: Sequence[IntArray]) -> IntArray:
    """Columns of several trees, one after the other."""
    return np.concatenate(columns) if columns else integers([])
