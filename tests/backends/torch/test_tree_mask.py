"""Masks against a reference that asks about every pair."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.hf.tree_mask import build
from sapwood.backends.torch.network import WHOLE, MaskBlock
from sapwood.core.array_types import BoolArray
from sapwood.core.tree import Tree

CPU = torch.device("cpu")


def random_block(rng: np.random.Generator, nodes: int) -> tuple[Tree, MaskBlock]:
    tree = Tree(0)
    for node in range(1, nodes):
        tree.add(int(rng.integers(node)), 0, 1.0, sampled=True)
    since = int(rng.integers(nodes))
    return tree, MaskBlock(int(rng.integers(9)), tree.parents, tree.depths, since)


def seen(tree: Tree, block: MaskBlock, window: int) -> BoolArray:
    """Which keys each row sees, pair by pair."""
    rows = []
    for node in range(block.since, len(tree)):
        place = block.length + int(tree.depths[node])
        keys = [*range(block.length), *(block.length + int(depth) for depth in tree.depths)]
        visible = [True] * block.length + [other in tree.path(node) for other in range(len(tree))]
        near = [window == WHOLE or place - key < window for key in keys]
        rows.append([a and b for a, b in zip(visible, near, strict=True)])
    return np.array(rows)


def found(blocks: list[MaskBlock], window: int) -> BoolArray:
    mask = build(blocks, window, torch.float32, CPU)
    if mask is None:
        return np.ones((blocks[0].rows, blocks[0].slots), bool)
    assert set(mask.flatten().tolist()) <= {0.0, torch.finfo(torch.float32).min}
    return (mask[0, 0] == 0).numpy()


@pytest.mark.parametrize("window", [WHOLE, 1, 3, 7])
@pytest.mark.parametrize("seed", range(8))
def test_one_session(seed: int, window: int) -> None:
    rng = np.random.default_rng(seed)
    for nodes in (1, 2, 6, 15):
        tree, block = random_block(rng, nodes)
        assert np.array_equal(found([block], window), seen(tree, block, window))


@pytest.mark.parametrize("window", [WHOLE, 3])
def test_sessions_are_blocks(window: int) -> None:
    rng = np.random.default_rng(1)
    pairs = [random_block(rng, nodes) for nodes in (5, 1, 8)]
    mask = found([block for _, block in pairs], window)
    row = slot = 0
    for tree, block in pairs:
        own = (slice(row, row + block.rows), slice(slot, slot + block.slots))
        assert np.array_equal(mask[own], seen(tree, block, window))
        mask[own] = False
        row = row + block.rows
        slot = slot + block.slots
    assert mask.shape == (row, slot)
    assert not mask.any()


def test_a_lone_root_needs_no_mask() -> None:
    lone = MaskBlock(300, np.array([-1]), np.array([0]))
    assert build([lone], WHOLE, torch.float32, CPU) is None
    assert build([lone], 301, torch.float32, CPU) is None
    assert build([lone], 300, torch.float32, CPU) is not None


def test_the_last_of_a_grown_chain_sees_all() -> None:
    chain = MaskBlock(4, np.array([-1, 0, 1]), np.array([0, 1, 2]), since=2)
    assert found([chain], WHOLE).all()
