"""Captures the passes of batches before the first request.

In the middle of a text a new shape takes 20 ms and more, and seconds if a kernel is compiled.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import torch

from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.kv_pool import KvSequence
from sapwood.backends.torch.cuda.mixed_pass import mixed_counts, mixed_shape, shape_of_rows
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.cuda.pass_inputs import (
    LADDER,
    MAX_ROWS,
    SHORT,
    PassRows,
    PassShape,
    RootRows,
    SessionRows,
    SingleTree,
    step_up,
)
from sapwood.backends.torch.cuda.tree_rows import ManyTrees, shape_of_trees
from sapwood.core.tree import Tree

ONE_WORD = 64  # most nodes of a tree, the root included: controllers ask for no more
TIMES = 2  # run eagerly, which compiles, then captured

Rows = PassRows | RootRows | ManyTrees


def capture_batches(
    network: CudaNetwork,
    watched: Collection[int],
    requests: int,  # that may share a pass
    progress: Callable[[str], None],
) -> None:
    """Capture passes over the roots of up to `requests` sessions, and over chunks of prompts."""
    network.pool.allocate(requests)
    passes = [
        *root_passes(network, requests),
        *tree_passes(network),
        *mixed_passes(network, requests),
    ]
    for number, (rows, shape) in enumerate(passes, 1):
        if number % 10 == 1:
            progress(f"capturing pass {number} of {len(passes)}")
        network.run_shape(rows, shape, watched, at_once=True)


def root_passes(network: CudaNetwork, requests: int) -> Iterator[tuple[Rows, PassShape]]:
    """Passes over single rows of many sessions, by their number and their longest text."""
    longest = SHORT
    while longest <= network.pool.slots:
        for count in LADDER:
            if count <= step_up(min(requests, MAX_ROWS), LADDER):
                length = np.full(count, longest - 1)
                rows = RootRows(np.zeros(count, np.int64), np.zeros(count, np.int64), length)
                yield rows, rows.shape(True, network.heads)
        longest *= 2


def tree_passes(network: CudaNetwork) -> Iterator[tuple[Rows, PassShape]]:
    """Passes over trees of several sessions, by their rows and their longest text."""
    nothing = np.zeros(1, np.int64)
    longest = SHORT
    while longest <= network.pool.slots:
        rows = ManyTrees.of([Tree.of_root(0)], nothing, nothing)
        for count in LADDER[1:]:
            shapes = [
                shape_of_trees(count, longest, True, network.heads, sparse=sparse)
                for sparse in (False, True)
            ]
            for shape in dict.fromkeys(shapes):
                yield rows, shape
        longest *= 2


@torch.inference_mode()
def capture_tree_passes(
    network: CudaNetwork,
    builder: CudaTreeBuilder,
    watched: Collection[int],
    progress: Callable[[str], None],
) -> None:
    """Capture the passes over trees of one request, drafted or looked up, of all sizes."""
    sequence = KvSequence(network.pool, network.layout, 1)
    rows, path = builder.round_buffer.rows, builder.round_buffer.path
    write_args = builder.pass_args_writer(network)
    longest = SHORT
    while longest <= network.pool.slots:
        progress(f"capturing passes over trees behind up to {longest} tokens")
        for nodes in LADDER:
            if nodes <= ONE_WORD:
                length = longest - ONE_WORD
                network.capture_tree_pass(
                    rows, path, nodes, sequence.first, length, watched, write_args
                )
                looked_up = chain_of(nodes, sequence.first, length)
                for _ in range(TIMES):
                    network.run_pass(looked_up, watched, head=True)
        longest *= 2
    sequence.release()


def chain_of(nodes: int, first: int, length: int) -> SingleTree:
    """A tree of one path, as look-ups make it."""
    each = np.arange(nodes)
    return SingleTree(np.zeros(nodes, np.int64), each - 1, each, first, length)


def mixed_passes(network: CudaNetwork, requests: int) -> Iterator[tuple[Rows, PassShape]]:
    """Passes over rows of sessions, single ones and those of trees, and a chunk of a prompt."""
    for count, trees in mixed_counts(requests):
        rows = mixed_rows(count, trees)
        yield rows, shape_of_rows(rows, network.heads, trees)
    for count, trees in mixed_counts(MAX_ROWS):
        pieces = [1] * trees + [count - trees]
        shape = mixed_shape(count, pieces, trees, 1, network.heads, branches=True)
        yield mixed_rows(count, trees), shape


def mixed_rows(count: int, trees: int) -> PassRows:
    """Rows of as many roots, then of one prompt; they write no keys and values."""
    roots = [SessionRows(row, 1, 0, 0, 1, True) for row in range(trees)]
    prompt = SessionRows(trees, count - trees, 0, 0, count - trees, True)
    positions = np.append(np.zeros(trees, np.int64), np.arange(count - trees))
    return PassRows(
        np.zeros(count, np.int64),
        positions,
        np.full(count, -1),
        [*roots, prompt],
        np.zeros((count, 1), np.int64),
    )
