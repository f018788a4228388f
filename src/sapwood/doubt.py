"""How unsure a law is, and how far two laws are apart; what a drafter's law was at a node of a tree.

Everything here reads whole laws, never the token that was drawn from one, so that what is decided by
it may be decided about sampled drafts too.
"""

import math
from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.tree import Tree


def entropy(law: FloatArray) -> float:
    """Entropy in nats."""
    some = law[law > 0]
    return max(0.0, -float(some @ np.log(some)))


def certainty(law: FloatArray) -> float:
    """One number from 0 to 1 out of three: evenness, odds and lead of the best token over the second, equal weights.

    CM-ASD (arXiv 2508.15371) calls the entropy itself a confidence, where doubt would raise it, and divides by
    the size of the vocabulary; here it is 1 - H / ln(size). Its logit margin under a sigmoid starts at one half;
    rescaled to start at 0 it is (best - second) / (best + second).
    """
    if len(law) < 2:
        return 1.0
    second, best = (float(chance) for chance in np.partition(law, -2)[-2:])
    lead = best - second
    return (1.0 - entropy(law) / math.log(len(law)) + lead / (best + second) + lead) / 3.0


def distance(one: FloatArray, other: FloatArray) -> float:
    """Jensen-Shannon distance, the root of the divergence in nats: 0 for equal laws, 0.83 for disjoint ones."""
    return math.sqrt(max(0.0, entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2))


def law_at(tree: Tree, node: int) -> FloatArray | None:
    """The whole law that the first child of this node was proposed from, [vocab]; None where no drafter left it.

    The law of sampled children lacks the siblings that the same drafter chose before drawing: they are put back.
    """
    children = tree.children(node)
    sources = bits(int(tree.sources[children[0]])) if children else []
    source = next((source for source in sources if (node, source) in tree.laws), None)
    if source is None:
        return None
    law = tree.laws[node, source]
    apart = [child for child in chosen(tree, node) if tree.sources[child] >> source & 1 and not law[tree.tokens[child]]]
    if not apart:
        return law
    mass: FloatArray = tree.probs[apart]
    whole = law * max(0.0, 1.0 - float(mass.sum()))
    whole[tree.tokens[apart]] = mass
    return whole


def entropy_at(tree: Tree, node: int) -> float:
    """Entropy of what follows this node; of the chosen children and one lump for the rest where there is no law."""
    law = law_at(tree, node)
    return entropy(lumped(tree, node) if law is None else law)


def certainty_at(tree: Tree, node: int) -> float:
    """Certainty of what follows this node; the best chosen child's probability where there is no law."""
    law = law_at(tree, node)
    return peak_at(tree, node) if law is None else certainty(law)


def peak_at(tree: Tree, node: int) -> float:
    """Probability of the best token after this node; of the best chosen child where there is no law."""
    law = law_at(tree, node)
    if law is not None:
        return float(law.max())
    return min(1.0, float(tree.probs[chosen(tree, node)].max(initial=0.0)))


def lumped(tree: Tree, node: int) -> FloatArray:
    """Probabilities of the chosen children, and of everything else together."""
    known = tree.probs[chosen(tree, node)]
    return np.append(known, max(0.0, 1.0 - float(known.sum())))


def chosen(tree: Tree, node: int) -> list[int]:
    """The children that were not drawn: their probabilities tell nothing of a draw."""
    return [child for child in tree.children(node) if not tree.sampled[child]]


def bits(word: int) -> list[int]:
    """Places of the bits that are set."""
    return [place for place in range(word.bit_length()) if word >> place & 1]


@dataclass
class Mean:
    """A running mean whose older values fade."""

    fade: float  # weight that a value keeps after the next one; 1 forgets nothing
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float) -> None:
        """Take in one value."""
        self.total = self.fade * self.total + value
        self.count = self.fade * self.count + 1.0

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.count if self.count else None
