"""The draft probability, raised for first choices.

A greedy target accepts a drafter's first choice more often than its probability predicts, the more
so where the drafter is uncertain. Measured on an EAGLE-3 head: trees with this correction go deeper
and are accepted further. Nothing is learned, so the first round is as good as the last.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, between
from sapwood.core.tree import Tree
from sapwood.core.types import AcceptanceTable
from sapwood.estimators.binned import DEPTHS, EDGES, RANKS


@dataclass
class Leader(Part):
    """The draft probability, raised for first choices."""

    lean: float = 0.3  # share of -ln p (at most one nat) by which a first choice is raised, 0 to 1

    def __post_init__(self) -> None:
        between(0, 1, lean=self.lean)

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """The draft probability of each node, raised where it is a first choice."""
        probs = tree.probs[start:]
        return np.where(tree.ranks[start:] == 0, self.raised(probs), probs)

    def raised(self, probs: FloatArray) -> FloatArray:
        """Chance of first choices of these probabilities."""
        doubt = np.minimum(-np.log(np.maximum(probs, np.finfo(float).tiny)), 1.0)  # nats
        found: FloatArray = probs * np.exp(self.lean * doubt)
        return found

    def export_table(self) -> AcceptanceTable:
        """The line of each source, without counts."""
        return AcceptanceTable(self.lines)

    def lines(self, source: int) -> FloatArray:
        """(a, b) of a + b * confidence as in `Binned.lines`, [confidence * rank * depth, 2]."""
        edges = np.concatenate(([0.0], EDGES, [1.0]))
        low, high = self.raised(edges[:-1]), self.raised(edges[1:])
        slope = (high - low) / np.diff(edges)
        found = np.zeros((len(slope), RANKS, DEPTHS, 2))
        found[..., 1] = 1.0
        found[:, 0, :, 0], found[:, 0, :, 1] = (low - slope * edges[:-1])[:, None], slope[:, None]
        return found.reshape(-1, 2)
