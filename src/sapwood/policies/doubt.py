"""A chain that ends where a rule sees doubt, in the two forms the literature knows.

A rule is asked about the newest token. Where the token stays and only what would follow is never drafted,
the rule may look at anything, the token included. Where the token itself is left out ("stop before"), the rule
must decide by the whole law it came from: leaving out a draw because of its own probability, and judging
what remains by p and q, shifts the output toward likely tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.policies.chain import Chain, spine
from sapwood.protocols import Frontier
from sapwood.records import Budget
from sapwood.tree import ROOT, Tree


@dataclass
class Stopping(Chain):
    """A chain that ends with, or before, the first token its rule doubts."""

    drops: ClassVar[bool] = False  # True: the doubted token is not checked, and `ends` reads its law alone
    least: ClassVar[int] = 0  # tokens that are checked whatever their law

    def ends(self, tree: Tree, child: int) -> bool:
        """True where nothing should be drafted after this token."""
        raise NotImplementedError

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, until its rule sees doubt."""
        found, tip = super().frontier(tree, budget), spine(tree)[-1]
        return [] if found and tip != ROOT and self.ends(tree, tip) else found

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The path; without its last token where the rule stops before it."""
        path = spine(tree)
        if self.drops and len(path) - 1 > self.least and self.ends(tree, path[-1]):
            path = path[:-1]
        return tree if len(path) == len(tree) else tree.keep(path)
