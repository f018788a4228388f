"""The best trees of a drafter's proposals, for each size, by a policy that knows the text.

The policy knows the target's text, so it expands the true path alone, for as long as the drafter
proposes the true token among its children. No policy over the same proposals can have more accepted
from a tree of as many nodes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.recipe import Recipe
from sapwood.trace.recorded_backend import RecordedSession
from sapwood.trace.replay import ReplayRun, TracePlayer
from sapwood.verifiers.match import Match

SIZES = (1, 2, 4, 8, 16, 32)


@dataclass
class OraclePolicy(Part):
    """A policy that grows and keeps the path of the text."""

    prunes: ClassVar[Prune] = Prune.NODES

    def reset(self, request: RequestContext) -> None:
        """Take the text from the recorded session."""
        assert isinstance(request.session, RecordedSession)
        self.session_ = request.session

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the true path, if it may be expanded."""
        tip = self.true(tree)[-1]
        able = not tree.expanded[tip] and tree.depths[tip] < min(budget.depth, budget.nodes)
        return [(tip, budget.width)] if able else []

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The true path."""
        return tree.keep(self.true(tree)[: budget.nodes + 1])

    def true(self, tree: Tree) -> list[int]:
        """Nodes on the text, root first."""
        keys = self.session_.known.place(tree, self.session_.length)
        return [ROOT, *(node for node in range(1, len(tree)) if not keys[node][1])]


def oracle(player: TracePlayer, recipe: Recipe, width: int) -> list[ReplayRun]:
    """A run for each size of tree."""
    return [
        player.play(
            f"oracle, {nodes} nodes",
            replace(
                recipe,
                policy=OraclePolicy(),
                verifier=Match(),
                controller=Fixed(nodes=nodes, depth=nodes, width=width),
            ),
        )
        for nodes in SIZES
    ]
