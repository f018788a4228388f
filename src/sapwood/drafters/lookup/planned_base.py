"""Base of drafters that plan a round's whole tree first and copy it level by level."""

from abc import abstractmethod

from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase


class PlannedBase(LookupBase):
    """Base of drafters with a plan: a place is a node of it."""

    def start(self, rng: Rng) -> int | None:
        """The root of a new plan."""
        self.plan_ = self.plan(rng)
        return ROOT

    def step(self, place: int, token: int) -> int | None:
        """The child that carries this token."""
        return self.plan_.child(place, token)

    def candidates(self, place: int) -> list[Candidate]:
        """The planned children, best first."""
        children = sorted(self.plan_.children(place), key=lambda node: -self.plan_.probs[node])
        return [(int(self.plan_.tokens[node]), float(self.plan_.probs[node])) for node in children]

    @abstractmethod
    def plan(self, rng: Rng) -> Tree:
        """The tree of this round, after the text so far."""


def add_row(plan: Tree, row: list[Candidate]) -> None:
    """Add a chain of candidates to a plan; the probability of nodes already there rises."""
    node = ROOT
    for token, chance in row:
        node = plan.add(node, token, chance)
