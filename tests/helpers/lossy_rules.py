"""Random drafts and target probabilities, and what a lossy verifier says of them."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from sapwood.backends.toy import ToyOutput
from sapwood.core.array_types import FloatArray
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict
from tests.helpers.part_factory import lossless_names, plain_names

VOCAB = 5
SEEDS = st.integers(0, 5_000)
LOSSY = [name for name in plain_names("verifier") if name not in lossless_names()]


def random_tree(seed: int) -> Tree:
    """A small tree of chosen tokens with draft laws."""
    random = np.random.default_rng(seed)
    tree = Tree(0)
    for node in range(4):
        if node < len(tree):
            probs = random.dirichlet(np.full(VOCAB, 0.6))
            tree.proposals[node, 0] = probs
            best = np.argsort(-probs, kind="stable")[: int(random.integers(1, 4))]
            tree.extend(node, best.tolist(), probs[best].tolist())
    return tree


def target_laws(seed: int, tree: Tree) -> FloatArray:
    """A random target law at each node, [n, vocab]."""
    return np.random.default_rng([seed, 7]).dirichlet(np.full(VOCAB, 0.6), size=len(tree))


def judged(rule: Any, seed: int, temperature: float) -> tuple[Tree, FloatArray, Verdict, list[int]]:
    """A rule's verdict on a random tree, with the target's laws and its own tokens at each node."""
    tree = random_tree(seed)
    all_probs = target_laws(seed, tree)
    made = PathProbs(
        tree, ToyOutput(np.log(all_probs)), Sampler(Sampling(temperature=temperature), [0])
    )
    own = [
        made.draw(node, 9 + int(tree.depths[node]) + 1, KeyedRng(seed)) for node in range(len(tree))
    ]
    rule.reset(None)
    return tree, all_probs, rule.verify(tree, made, 9, KeyedRng(seed)), own


def lenient_path(
    tree: Tree, all_probs: FloatArray, own: list[int], passes: Any
) -> tuple[list[int], int]:
    """The target's own token, or else the child it likes best, where that passes."""
    path = [ROOT]
    while True:
        node = path[-1]
        children = tree.children(node)
        mine = [child for child in children if tree.tokens[child] == own[node]]
        liked = sorted(children, key=lambda child: -all_probs[node, tree.tokens[child]])[:1]
        found = mine or [child for child in liked if passes(path, child)]
        if not found:
            return path, own[node]
        path.append(found[0])
