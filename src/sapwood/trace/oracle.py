"""The best that a drafter's proposals could have given: a tree of each size, grown by someone who knows the text.

Who knows what the target will say expands the true path alone, for as long as the drafter proposes the true token among
its children. No policy over the same proposals can have more accepted from a tree of as many nodes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sapwood.controllers.fixed import Fixed
from sapwood.part import Part
from sapwood.protocols import Frontier, Request
from sapwood.recipe import Recipe
from sapwood.records import Budget, Prune
from sapwood.trace.known import TextSession
from sapwood.trace.replay import Player, Run
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.match import Match

SIZES = (1, 2, 4, 8, 16, 32)


@dataclass
class Foreseeing(Part):
    """Grows and keeps the path that the text takes."""

    prunes: ClassVar[Prune] = Prune.NODES

    def reset(self, request: Request) -> None:
        """Learn which text it is."""
        assert isinstance(request.session, TextSession)
        self.session_ = request.session

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the true path, while it may go on."""
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


def oracle(player: Player, recipe: Recipe, width: int) -> list[Run]:
    """A run for each size of tree."""
    return [
        player.play(
            f"oracle, {nodes} nodes",
            replace(
                recipe, policy=Foreseeing(), verifier=Match(), controller=Fixed(nodes=nodes, depth=nodes, width=width)
            ),
        )
        for nodes in SIZES
    ]
