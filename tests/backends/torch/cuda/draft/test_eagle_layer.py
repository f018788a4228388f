"""The weights of an EAGLE-3 head as a draft reads them, and the sizes of the levels it grows."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.eagle_layer import (
    BANDS,
    LevelSizes,
    band,
    describe,
    fused,
    level_sizes,
)
from sapwood.core.tree import Tree
from tests.helpers import head_folders

FORMS = [(1, 1, 1), (1, 3, 4), (2, 3, 4), (3, 2, 5), (4, 8, 2), (5, 4, 1), (6, 100, 2)]


def grown(form: LevelSizes) -> Tree:
    """A tree whose beam opens the first nodes of every level, as the form counts them."""
    tree = Tree(0)
    opened = [0]
    for _ in range(form.depth):
        level = [
            tree.add(parent, place, 0.5, rank=place, sampled=True)
            for parent in opened
            for place in range(form.width)
        ]
        opened = level[: form.beam]
    return tree


@pytest.mark.parametrize("numbers", FORMS, ids=str)
def test_a_form_counts_the_nodes_of_a_grown_tree(numbers: tuple[int, int, int]) -> None:
    form = LevelSizes(*numbers)
    tree = grown(form)
    assert form.size == len(tree)
    assert np.array_equal(form.depths, tree.depths)
    assert np.array_equal(form.ranks[1:], tree.ranks[1:])
    for depth in range(1, form.depth + 1):
        level = np.flatnonzero(tree.depths == depth)
        assert form.first(depth) == level[0]
        assert len(level) == form.width * form.rows(depth - 1)
        assert form.rows(depth) == min(form.beam, len(level))


@pytest.mark.parametrize("numbers", FORMS, ids=str)
def test_a_form_counts_the_nodes_that_are_expanded(numbers: tuple[int, int, int]) -> None:
    form = LevelSizes(*numbers)
    expanded = [form.rows(depth) for depth in range(1, form.depth)]
    assert form.opened == sum(expanded)
    for depth in range(1, form.depth + 1):
        assert form.before(depth) == sum(expanded[: depth - 1])


def test_equal_forms_are_one_object() -> None:
    assert level_sizes(3, 2, 4) is level_sizes(3, 2, 4)
    assert level_sizes(3, 2, 4) == LevelSizes(3, 2, 4)
    assert level_sizes(3, 2, 4) != level_sizes(3, 2, 5)


def test_bands_of_depth_double() -> None:
    assert [band(depth) for depth in (1, 2, 3, 4, 7, 8, 15, 16, 40)] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert band(1 << 20) == BANDS - 1


def test_fused_projections_share_one_memory() -> None:
    parts = [torch.nn.Linear(4, rows, bias=False) for rows in (3, 2, 5)]
    before = [part.weight.detach().clone() for part in parts]
    whole = fused(*parts)
    assert torch.equal(whole, torch.cat(before))
    whole.zero_()
    assert all(not part.weight.any() for part in parts)
    assert [part.weight.shape[0] for part in parts] == [3, 2, 5]


def test_a_head_is_described_by_its_own_tensors() -> None:
    head = head_folders.make()
    shape = head.config.shape
    embedding = torch.randn(head.config.vocab, shape.width)
    weights = describe(head, embedding)
    assert weights.width == shape.width == 32
    assert (weights.heads, weights.kv_heads, weights.head_width, weights.inner) == (4, 2, 8, 48)
    assert weights.qkv.shape == ((4 + 2 * 2) * 8, 2 * shape.width)
    assert weights.gate_up.shape == (2 * 48, shape.width)
    assert weights.fuse.shape == (shape.width, 3 * head.config.target_width)
    assert weights.head.shape == (20, shape.width)
    assert torch.equal(weights.vocabulary, head.vocabulary)
    assert torch.equal(weights.qkv[:32], head.midlayer.self_attn.q_proj.weight)
    assert torch.equal(weights.gate_up[48:], head.midlayer.mlp.up_proj.weight)
    assert weights.embedding.data_ptr() == embedding.data_ptr()
    assert not weights.qkv.requires_grad


def test_the_described_rotation_is_the_heads_own() -> None:
    head = head_folders.make()
    shape = head.config.shape
    weights = describe(head, torch.zeros(head.config.vocab, shape.width))
    wanted = [shape.theta ** (-2 * pair / shape.head_width) for pair in range(4)]
    assert weights.rates.tolist() == pytest.approx(wanted)
