"""The description of a pass that the device writes itself, against the one that the host would write."""

import numpy as np
import pytest
import torch

from sapwood.core.tree import Tree
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, to_device_tree
from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.pass_inputs import (
    NOTHING,
    PassArgs,
    PassInputs,
    PassRows,
    SessionRows,
    pack,
    shape_of_one,
)
from sapwood.backends.torch.cuda.pass_setup import place

HEADS = HeadSizes(4, 2, 16)


@pytest.mark.parametrize(
    ("nodes", "near"), [(1, 6), (13, 6), (13, 1), (64, 6), (70, 6), (70, 1), (ROWS, 6)]
)
def test_a_tree_on_the_device_is_described_like_one_on_the_host(nodes: int, near: int) -> None:
    """Parents are among the `near` nodes before; with one of them the tree is a chain."""
    random = np.random.default_rng(nodes)
    tree = Tree(3)
    while len(tree) < nodes:
        parent = int(random.integers(max(0, len(tree) - near), len(tree)))
        tree.add(parent, int(random.integers(60)), 0.5, sampled=True)
    first, length = 200, 21
    device = torch.device(DEVICE)
    words = -(-nodes // 64)
    shape = shape_of_one(nodes, length, words, True, HEADS, nodes > 1)
    args = PassArgs(device)
    args.write(first, length, nodes, NOTHING)
    args.send()
    inputs = PassInputs(device)
    inputs.on_device.fill_(77)  # what an earlier pass has left
    rows = to_device_tree(tree, device).rows
    assert rows is not None
    place(rows, args.on_device, inputs, shape)
    host = PassRows(
        tree.tokens,
        length + tree.depths,
        np.arange(first + length, first + length + nodes),
        [SessionRows(0, nodes, first, length, nodes, chain=near == 1 or nodes == 1)],
        pack(tree.ancestors()),
    )
    buffer = np.zeros(len(inputs.on_device), np.int64)
    size = host.write(shape, buffer)
    tokens, positions, slots, blocks, seen = (part.cpu() for part in inputs.parts(shape))
    wanted = torch.from_numpy(buffer[:size])
    used = slice(0, nodes)
    assert torch.equal(tokens, wanted[: shape.rows])
    assert torch.equal(positions[used], wanted[shape.rows : shape.rows + nodes])
    assert torch.equal(slots, wanted[2 * shape.rows : 3 * shape.rows])
    described = wanted[3 * shape.rows : shape.size].view(blocks.shape)
    filled = -(-nodes // shape.tiles.rows)
    assert torch.equal(blocks[:, :filled], described[:, :filled])
    assert not blocks[3, filled:].any()  # blocks behind them hold no rows
    assert torch.equal(seen[..., :words], wanted[shape.size :].view(seen.shape)[..., :words])
