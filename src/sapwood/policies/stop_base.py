"""Base of chains that end by a stop rule, with or before the token that triggers it.

The rule is applied to the newest token. Where the token stays and only what would follow is never
drafted, the rule may depend on anything, the token included. Where the token itself is left out
("stop before"), the rule may depend only on the probs it was drawn from: leaving out a draw because
of its own probability, and verifying the rest by p and q, shifts the output toward likely tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.policies.chain import Chain, first_path


@dataclass
class StopBase(Chain):
    """A chain that ends with, or before, the first token that its rule stops at."""

    # True: that token is not verified, and `ends` depends only on the probs it was drawn from
    drops: ClassVar[bool] = False
    least: ClassVar[int] = 0  # tokens that are always verified

    def ends(self, tree: Tree, child: int) -> bool:
        """True when nothing should be drafted after this token."""
        raise NotImplementedError

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, until its rule stops it."""
        found = super().frontier(tree, budget)
        tip = first_path(tree)[-1]
        return [] if found and tip != ROOT and self.ends(tree, tip) else found

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The path; without its last token where the rule stops before it."""
        path = first_path(tree)
        if self.drops and len(path) - 1 > self.least and self.ends(tree, path[-1]):
            path = path[:-1]
        return tree if len(path) == len(tree) else tree.keep(path)
