"""Expected tokens of a rule on a tree are those of an enumeration over the whole vocabulary."""

from functools import partial

import numpy as np
import pytest
from benchmarks.enumerated_verdicts import BranchRng, KnownProbs, expected_tokens

from sapwood.core.array_types import FloatArray
from sapwood.core.tree import ROOT, Tree
from sapwood.recipe import build
from sapwood.spec_parser import read
from sapwood.testing.exact import outcomes

VOCAB = 7


def law(seed: int) -> FloatArray:
    """A distribution over all tokens."""
    return np.random.default_rng(seed).dirichlet(np.ones(VOCAB))


def drawn(*, replacement: bool) -> tuple[Tree, KnownProbs]:
    """Two levels of two sampled children each, with the distributions of target and drafter."""
    tree = Tree(0)
    for node, tokens in ((ROOT, (3, 3 if replacement else 5)), (1, (2, 6)), (2, (1, 4))):
        tree.proposals[node, 0] = law(50 + node)
        for token in tokens:
            tree.add(node, token, 0.2, sampled=True)
        tree.close(node)
    return tree, KnownProbs([law(node) for node in range(len(tree))])


@pytest.mark.parametrize(
    ("rule", "replacement"),
    [
        ("naive", False),
        ("match", False),
        ("rrs", False),
        ("traversal", False),
        ("optimal(shape=[2, 2])", False),
        ("mss", True),
        ("kseq(shape=[2, 2])", True),
        ("khisti(shape=[2, 2])", True),
        ("traversal-iid", True),
    ],
)
def test_the_expectation_is_that_of_all_verdicts(rule: str, replacement: bool) -> None:
    tree, target = drawn(replacement=replacement)
    verifier = build("verifier", read(rule))
    every = outcomes(partial(verifier.verify, tree, target, 9))  # type: ignore[attr-defined]
    exact = sum(weight * len(verdict.path) for weight, verdict in every)
    assert 1 < exact < 3
    assert expected_tokens(verifier, tree, target, 9) == pytest.approx(exact, abs=2e-4)


def test_tokens_outside_of_the_tree_are_one_option() -> None:
    tree, target = drawn(replacement=False)
    rng = BranchRng(tree, [], VOCAB)
    first = rng.pick(target.probs(ROOT), None)  # type: ignore[arg-type]
    assert first == 1  # the first token of the tree; the others are queued
    assert len(rng.left) == len({1, 2, 3, 4, 5, 6} | {0}) - 1
    again = BranchRng(tree, rng.left[-1], VOCAB)
    assert again.pick(target.probs(ROOT), None) == 0  # type: ignore[arg-type]
    assert again.weight == pytest.approx(target.probs(ROOT)[0])
