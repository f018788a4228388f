"""Entropy, certainty and distance of distributions, and a drafter's distribution at a node.

All functions read whole distributions, never the token that was drawn, so that decisions based on
them are sound for sampled drafts too.
"""

import math
from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.tree import Tree


def entropy(probs: FloatArray) -> float:
    """Entropy in nats."""
    some = probs[probs > 0]
    return max(0.0, -float(some @ np.log(some)))


def certainty(probs: FloatArray) -> float:
    """Certainty from 0 to 1: the mean of evenness, odds and lead of the best over the second token.

    CM-ASD (arXiv 2508.15371) uses the entropy itself as a confidence, which uncertainty raises, and
    divides by the size of the vocabulary; here it is 1 - H / ln(size). Its logit margin under a
    sigmoid starts at one half; rescaled to start at 0 it is (best - second) / (best + second).
    """
    if len(probs) < 2:
        return 1.0
    second, best = (float(chance) for chance in np.partition(probs, -2)[-2:])
    lead = best - second
    return (1.0 - entropy(probs) / math.log(len(probs)) + lead / (best + second) + lead) / 3.0


def distance(one: FloatArray, other: FloatArray) -> float:
    """Jensen-Shannon distance in nats: 0 for equal distributions, 0.83 for disjoint ones."""
    return math.sqrt(max(0.0, entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2))


def probs_at(tree: Tree, node: int) -> FloatArray | None:
    """The drafter's probs from which this node's first child comes, [vocab]; None if not stored.

    The probs of sampled children lack the siblings that the same drafter chose before drawing: they
    are added again.
    """
    children = tree.children(node)
    sources = bits(int(tree.sources[children[0]])) if children else []
    source = next((source for source in sources if (node, source) in tree.proposals), None)
    if source is None:
        return None
    probs = tree.proposals[node, source]
    apart = [
        child
        for child in chosen(tree, node)
        if tree.sources[child] >> source & 1 and not probs[tree.tokens[child]]
    ]
    if not apart:
        return probs
    mass: FloatArray = tree.probs[apart]
    whole = probs * max(0.0, 1.0 - float(mass.sum()))
    whole[tree.tokens[apart]] = mass
    return whole


def entropy_at(tree: Tree, node: int) -> float:
    """Entropy after this node; without probs, of the chosen children and the rest as one."""
    probs = probs_at(tree, node)
    return entropy(lumped(tree, node) if probs is None else probs)


def certainty_at(tree: Tree, node: int) -> float:
    """Certainty after this node; without probs, the best chosen child's probability."""
    probs = probs_at(tree, node)
    return peak_at(tree, node) if probs is None else certainty(probs)


def peak_at(tree: Tree, node: int) -> float:
    """Probability of the best token after this node; without probs, of the best chosen child."""
    probs = probs_at(tree, node)
    if probs is not None:
        return float(probs.max())
    return min(1.0, float(tree.probs[chosen(tree, node)].max(initial=0.0)))


def lead_at(tree: Tree, node: int) -> float:
    """Lead of the best token over the second after this node; without probs, of chosen children.

    A single chosen child is compared with all other tokens together.
    """
    probs = probs_at(tree, node)
    known = lumped(tree, node) if probs is None else probs
    if len(known) < 2:
        return 1.0
    second, best = np.partition(known, -2)[-2:]
    return float(best - second)


def lumped(tree: Tree, node: int) -> FloatArray:
    """Probabilities of the chosen children, and of all other tokens together."""
    known = tree.probs[chosen(tree, node)]
    return np.append(known, max(0.0, 1.0 - float(known.sum())))


def chosen(tree: Tree, node: int) -> list[int]:
    """The children that were not drawn: their probabilities reveal nothing about a draw."""
    return [child for child in tree.children(node) if not tree.sampled[child]]


def bits(sources: int) -> list[int]:
    """Places of the bits that are set."""
    return [bit for bit in range(sources.bit_length()) if sources >> bit & 1]


@dataclass
class DecayedMean:
    """A running mean whose older values decay."""

    fade: float  # weight that a value keeps after the next one; 1 forgets nothing
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.total = self.fade * self.total + value
        self.count = self.fade * self.count + 1.0

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.count if self.count else None
