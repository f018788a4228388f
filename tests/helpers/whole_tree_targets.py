"""A target that drafts node by node and its twin that builds whole trees on the device."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import first_rounds, make_text


class WholeTreeTarget(TorchBackend):
    """A backend whose device grows whole trees; here the device is the CPU."""

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> CudaTreeBuilder:
        return CudaTreeBuilder(head, embedding)


@cache
def backends() -> tuple[TorchBackend, WholeTreeTarget]:
    model = tiny_models.make("llama")
    return TorchBackend(model, "tiny"), WholeTreeTarget(model, "tiny")


TIE = 1e-4  # relative difference of two nodes' reach below which either may come first


SHARED = 0.95  # share of the paths that two trees have in common all the same


def paths(tree: Tree) -> set[tuple[int, ...]]:
    """Tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for parent, token in zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


def first_difference(ours: Tree, theirs: Tree) -> int | None:
    """The first node that is another one in the two trees; None if all are the same."""
    pairs = [
        list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        for tree in (ours, theirs)
    ]
    assert len(pairs[0]) == len(pairs[1])
    return next(
        (node for node, (one, two) in enumerate(zip(*pairs, strict=True)) if one != two), None
    )


def assert_same_tree(ours: Tree, theirs: Tree, close: float = 1e-5) -> None:
    """Compare two trees; from a tie on, which rounding decides, they may differ."""
    if (node := first_difference(ours, theirs)) is not None:
        assert ours.reach[node] == pytest.approx(theirs.reach[node], rel=TIE), node
        assert ours.reach[:node] == pytest.approx(theirs.reach[:node], abs=close)
        shared = paths(ours) & paths(theirs)
        assert len(shared) >= SHARED * len(ours), f"{len(shared)} of {len(ours)} paths are shared"
        return
    for name in ("parents", "depths", "ranks", "sources", "expanded", "sampled"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.probs[1:] == pytest.approx(theirs.probs[1:], abs=close)
    assert ours.reach == pytest.approx(theirs.reach, abs=close)
    assert (ours.kept is None) == (theirs.kept is None)
    assert (
        ours.kept is None
        or ours.kept.tolist() == (theirs.kept if theirs.kept is not None else ours.kept).tolist()
    )


def take_turns(recipe: Recipe) -> Engine:
    """Two requests round by round in turn, whose trees must be those of steps; the engine that ran them."""
    steps, whole = backends()
    prompts = [make_text(7, 1), make_text(12, 2)]
    engine = Engine(whole, recipe)
    running = [engine.rounds(prompt, Sampling(max_tokens=99), KeyedRng(3)) for prompt in prompts]
    turns = [[next(one) for one in running] for _ in range(4)]
    for place, prompt in enumerate(prompts):
        for turn, other in zip(
            turns, first_rounds(steps, recipe, prompt, 4, Sampling(max_tokens=99)), strict=True
        ):
            assert_same_tree(turn[place].tree, other.tree)
    for one in running:
        one.close()
    return engine
