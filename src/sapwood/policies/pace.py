"""What a level of drafting takes, as a straight line in the nodes it expands, fitted to the last rounds."""

import numpy as np

from sapwood.records import Outcome

FADE = 0.95  # weight that a round keeps after the next one
MISHAP = 4.0  # a round that takes more than so many times what was foreseen counts as so many
SURE = 3  # rounds after which something can be foreseen


class Pace:
    """Seconds of drafting by levels and nodes."""

    def __init__(self) -> None:
        self.rounds = 0
        self.squares, self.products = np.zeros((2, 2)), np.zeros(2)  # of levels and nodes; of these with seconds
        self.level = self.node = 0.0  # seconds of a level, and of each node that it expands

    def seconds(self, nodes: int) -> float:
        """Seconds of a level that expands so many nodes; 0 before anything was seen."""
        return self.level + self.node * nodes

    @property
    def each(self) -> float:
        """Seconds of a level of the usual breadth; 0 before anything was seen."""
        return float(self.products[0] / self.squares[0, 0]) if self.rounds else 0.0

    def observe(self, outcome: Outcome) -> None:
        """Take in a round."""
        grown = outcome.grown
        expanded = grown.depths[grown.expanded]
        if not len(expanded):
            return
        work = np.array((len(np.unique(expanded)), len(expanded)), float)
        spent = outcome.times.draft
        if self.rounds >= SURE:
            spent = min(spent, MISHAP * float(work @ (self.level, self.node)))
        self.rounds += 1
        self.squares = FADE * self.squares + np.outer(work, work)
        self.products = FADE * self.products + work * spent
        self.level, self.node = self._fit()

    def _fit(self) -> tuple[float, float]:
        """The line that errs least; what would come out negative, or cannot be told apart, is zero."""
        alone = self.products / np.maximum(np.diag(self.squares), 1e-300)
        if np.linalg.det(self.squares) <= 1e-6 * np.prod(np.diag(self.squares)):
            return float(alone[0]), 0.0
        level, node = np.linalg.solve(self.squares, self.products).tolist()
        if node < 0:
            return float(alone[0]), 0.0
        return (level, node) if level >= 0 else (0.0, float(alone[1]))
