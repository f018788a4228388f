"""Linear fit of the seconds of a drafted level against the nodes it expands."""

import numpy as np

from sapwood.core.types import Outcome

FADE = 0.95  # weight that a round keeps after the next one
MISHAP = 4.0  # a round's seconds are clipped at this multiple of the predicted ones
SURE = 3  # rounds before predictions are used


class DraftCostFit:
    """Seconds of drafting by levels and nodes, by least squares over decayed rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        # decayed sums: outer products of (levels, nodes), and (levels, nodes) times seconds
        self.squares = np.zeros((2, 2))
        self.products = np.zeros(2)
        self.level = self.node = 0.0  # seconds of a level, and of each node that it expands

    def seconds(self, nodes: int) -> float:
        """Seconds of a level that expands so many nodes; 0 before the first round."""
        return self.level + self.node * nodes

    @property
    def each(self) -> float:
        """Seconds of a level of the usual breadth; 0 before the first round."""
        return float(self.products[0] / self.squares[0, 0]) if self.rounds else 0.0

    def observe(self, outcome: Outcome) -> None:
        """Add a round to the fit."""
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
        """Least-squares seconds per level and per node; negative or collinear terms become 0."""
        alone = self.products / np.maximum(np.diag(self.squares), 1e-300)
        if np.linalg.det(self.squares) <= 1e-6 * np.prod(np.diag(self.squares)):
            return float(alone[0]), 0.0
        level, node = np.linalg.solve(self.squares, self.products).tolist()
        if node < 0:
            return float(alone[0]), 0.0
        return (level, node) if level >= 0 else (0.0, float(alone[1]))
