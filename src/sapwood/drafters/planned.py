"""Drafters that lay out a round's guesses at once, as a tree of their own, and hand them over as they are asked."""

from abc import abstractmethod

from sapwood.drafters.follow import Follow, Guess
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree


class Planned(Follow):
    """Base of drafters with a plan: a place is a node of it."""

    def start(self, rng: Rng) -> int:
        """The root of a new plan."""
        self.plan_ = self.plan(rng)
        return ROOT

    def step(self, place: int, token: int) -> int | None:
        """The child that carries this token."""
        return self.plan_.child(place, token)

    def guesses(self, place: int) -> list[Guess]:
        """The planned children, best first."""
        children = sorted(self.plan_.children(place), key=lambda node: -self.plan_.probs[node])
        return [(int(self.plan_.tokens[node]), float(self.plan_.probs[node])) for node in children]

    @abstractmethod
    def plan(self, rng: Rng) -> Tree:
        """Guesses of this round, after the text so far."""


def add_row(plan: Tree, row: list[Guess]) -> None:
    """Put a chain of guesses into a plan; tokens that are there already gain trust."""
    node = ROOT
    for token, chance in row:
        node = plan.add(node, token, chance)
