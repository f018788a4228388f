"""The bits of a row of logits do not depend on what else is in its pass, or was in earlier ones."""

import numpy as np
import pytest
import torch

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import PrefillChunk, TargetOutput, TreeInput
from sapwood.core.tree import Tree
from sapwood.testing import backend_contract
from tests.helpers import tiny_models
from tests.helpers.int8_targets import CPU_ONLY, EVERY_KERNEL, EXPERTS, EXTENDED, RELATED
from tests.helpers.triton_mode import CUDA, DEVICE, chosen, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.kernels.attention_tiles import CHUNK

pytestmark = pytest.mark.usefixtures("wide_tiles")

DEPTH = 2  # of a tree whose last nodes are beyond a chunk of keys


def deep_tree(backend: CudaBackend, rng: np.random.Generator) -> Tree:
    """A path with a leaf beside each of its nodes."""
    tokens = iter(backend_contract.text(backend, rng, 2 * DEPTH + 1))
    tree = Tree(next(tokens))
    tip = 0
    for _ in range(DEPTH):
        tree.add(tip, next(tokens), 0.5)
        tip = tree.add(tip, next(tokens), 0.5)
    return tree


def rows_of(scores: TargetOutput, count: int) -> FloatArray:
    return np.stack([scores.logits(row) for row in range(count)])


@pytest.fixture(scope="module")
def scored_tree() -> tuple[CudaBackend, list[int], Tree, FloatArray]:
    """A backend, a text that ends before a chunk of keys does, a tree, and logits of its nodes."""
    model = tiny_models.make(
        "llama",
        torch.bfloat16 if CUDA else torch.float32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    backend = CudaBackend(model.to(DEVICE))
    rng = np.random.default_rng(5)
    start = backend_contract.text(backend, rng, CHUNK - 1)
    tree = deep_tree(backend, rng)
    [scores] = backend.score([TreeInput(backend.open(start), tree)])
    return backend, start, tree, rows_of(scores, len(tree))


def test_a_row_of_a_tree_has_the_bits_of_the_row_alone(
    scored_tree: tuple[CudaBackend, list[int], Tree, FloatArray],
) -> None:
    backend, start, tree, wanted = scored_tree
    session = backend.open(start)
    for node in tree.path(len(tree) - 1):  # one after the other, as without a draft
        [scores] = backend.score([TreeInput(session, Tree(int(tree.tokens[node])))])
        assert np.array_equal(scores.logits(0), wanted[node])
        session.commit([0])


OTHERS = tuple(name for name in (*RELATED, *EXTENDED, *EXPERTS) if name not in CPU_ONLY)


@pytest.mark.parametrize("name", chosen(OTHERS, EVERY_KERNEL))
def test_a_row_of_another_architecture_has_the_bits_of_the_row_alone(name: str) -> None:
    model = tiny_models.make(name, torch.bfloat16 if CUDA else torch.float32)
    backend = CudaBackend(model.to(DEVICE))
    rng = np.random.default_rng(8)
    start = backend_contract.text(backend, rng, 7)  # longer than a window
    tree = deep_tree(backend, rng)
    [scores] = backend.score([TreeInput(backend.open(start), tree)])
    wanted = rows_of(scores, len(tree))
    session = backend.open(start[:1])  # its prompt is read beside the tree of another text
    other = backend.open(backend_contract.text(backend, rng, 2))
    other_tree = backend_contract.random_tree(backend, rng, 2)
    backend.score([TreeInput(other, other_tree)], [PrefillChunk(session, start[1:])])
    both = [TreeInput(other, other_tree), TreeInput(session, tree)]
    assert np.array_equal(rows_of(backend.score(both)[1], len(tree)), wanted)
    for node in tree.path(len(tree) - 1):
        [scores] = backend.score([TreeInput(session, Tree(int(tree.tokens[node])))])
        assert np.array_equal(scores.logits(0), wanted[node])
        session.commit([0])


def test_a_row_has_the_same_bits_beside_other_sessions(
    scored_tree: tuple[CudaBackend, list[int], Tree, FloatArray],
) -> None:
    backend, start, tree, wanted = scored_tree
    rng = np.random.default_rng(6)
    others = [backend.open(backend_contract.text(backend, rng, count)) for count in (3, 1)]
    small = backend_contract.random_tree(backend, rng, 3)
    works = [
        TreeInput(others[0], small),
        TreeInput(backend.open(start), tree),
        TreeInput(others[1], Tree(7)),
    ]
    scores = backend.score(works)[1]
    assert np.array_equal(rows_of(scores, len(tree)), wanted)


@pytest.mark.parametrize("first", [1, 40])
def test_a_row_has_the_same_bits_after_a_prompt_in_other_chunks(
    first: int, scored_tree: tuple[CudaBackend, list[int], Tree, FloatArray]
) -> None:
    backend, start, tree, wanted = scored_tree
    session = backend.open(start[:first])
    backend.score([], [PrefillChunk(session, start[first:])])
    [scores] = backend.score([TreeInput(session, tree)])
    assert np.array_equal(rows_of(scores, len(tree)), wanted)


def test_a_row_has_the_same_bits_in_a_pass_with_prompts(
    scored_tree: tuple[CudaBackend, list[int], Tree, FloatArray],
) -> None:
    backend, start, tree, wanted = scored_tree
    rng = np.random.default_rng(7)
    other = backend_contract.text(backend, rng, 5)
    waiting = backend.open(other[:2])
    chunked = backend.open(start[:40])
    [scores] = backend.score(
        [TreeInput(backend.open(start), tree)],
        [PrefillChunk(waiting, other[2:]), PrefillChunk(chunked, start[40:])],
    )
    assert np.array_equal(rows_of(scores, len(tree)), wanted)
    [later] = backend.score([TreeInput(chunked, tree)])  # its prompt was read in that pass
    assert np.array_equal(rows_of(later, len(tree)), wanted)
    assert waiting.length == len(other)


def test_prompts_share_a_pass_without_trees(
    scored_tree: tuple[CudaBackend, list[int], Tree, FloatArray],
) -> None:
    backend, start, tree, wanted = scored_tree
    sessions = [backend.open(start[:1]) for _ in range(2)]
    before = backend.fused.count
    assert backend.score([], [PrefillChunk(one, start[1:]) for one in sessions]) == []
    assert backend.fused.count == before + 1
    [scores] = backend.score([TreeInput(sessions[1], tree)])
    assert np.array_equal(rows_of(scores, len(tree)), wanted)
    read = sessions[0].prefill_output(1)
    assert read is not None
    [alone] = backend.score([TreeInput(backend.open(start[:-1]), Tree(start[-1]))])
    # another product makes these; half floats on a GPU
    assert np.allclose(read.logits(0), alone.logits(0), atol=4e-2 if DEVICE == "cuda" else 1e-2)
