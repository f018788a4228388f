"""The next token begins while this one is under way, once for each of the exit's best guesses.

Predictive pipelined decoding (arXiv 2307.05908) starts from the present token alone. When that has
passed an intermediate layer, the `guesses` best tokens of an exit there begin their own way through
the layers at once; when the token is known, the guess that is right goes on, and the others end.
A right guess saves the layers behind the exit, for the computation of all guesses. PPSD follows one
guess and goes on guessing behind it; here guesses wait for the token before them to be known.

The drafter is `layer-exit`, the driver `engine/pipeline.py`; where requests share passes the
guesses are the children of the root.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.overlap import OverlapGauge
from sapwood.core.part import Part, at_least
from sapwood.core.pipeline import Window
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune


@dataclass
class Predictive(Part):
    """The exit's best guesses of one token begin before it is known."""

    guesses: int = 3  # >= 1
    stages: int = 2  # of the target, >= 2; the first ends at the exit

    paper: ClassVar[str] = "2307.05908"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        at_least(1, guesses=self.guesses)
        at_least(2, stages=self.stages)

    def bind(self, setting: EngineContext) -> None:
        """Begin to measure whether the pipeline pays; shared by all requests."""
        super().bind(setting)
        self.gauge = OverlapGauge()

    def grow(self, window: Window, start: int) -> Frontier:
        """The last known token, once it has left the first stage."""
        tree, tip = window.tree, window.tip
        passed = tip in tree.states or tip in window.left_first
        return [(tip, self.guesses)] if passed and not tree.expanded[tip] else []

    def choose(self, window: Window, start: int) -> list[int]:
        """All guesses."""
        return [*range(start, len(window.tree))]

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The root alone."""
        width = min(self.guesses, budget.width, budget.nodes)
        return [] if tree.expanded[ROOT] or not width else [(ROOT, width)]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The first guesses, as many as the budget allows."""
        children = tree.children(ROOT)[: budget.nodes]
        return tree if len(children) == len(tree) - 1 else tree.keep(children)
