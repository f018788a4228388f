"""What drafters share that read each node's children off its place in something known: a text, a table, a plan.

A place is whatever the drafter needs to go on from: the root's is found once per round, a child's
follows from its parent's and its own token, so that nodes of other drafters have places too.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sapwood.errors import Unsound
from sapwood.part import Part
from sapwood.protocols import Drafter, Frontier, Request
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

Guess = tuple[int, float]  # a token and its chance


class Follow(Part, ABC):
    """Base of look-up drafters: keeps the text, and a place for each node of the round's tree."""

    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()

    def reset(self, request: Request) -> None:
        """Begin with the prompt."""
        super().reset(request)
        self.text_ = list(request.prompt)
        self.tree_: Tree | None = None
        self.places_: dict[int, Any] = {}

    def observe(self, outcome: Outcome) -> None:
        """Append what was emitted."""
        super().observe(outcome)
        self.text_ += outcome.tokens

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the best guesses at each node's place."""
        if tree is not self.tree_:
            self.tree_, self.places_ = tree, {ROOT: self.start(rng)}
        for node, width in frontier:
            place = self._place(tree, node)
            found = [] if place is None else self.guesses(place)[:width]
            tree.extend(node, [token for token, _ in found], [chance for _, chance in found], source=self.source)

    def _place(self, tree: Tree, node: int) -> Any:
        if node not in self.places_:
            before = self._place(tree, int(tree.parents[node]))
            self.places_[node] = None if before is None else self.step(before, int(tree.tokens[node]))
        return self.places_[node]

    @abstractmethod
    def start(self, rng: Rng) -> Any:
        """The root's place, at the end of the text; None where nothing is known."""

    @abstractmethod
    def step(self, place: Any, token: int) -> Any:
        """The place after one more token; None where nothing is known."""

    @abstractmethod
    def guesses(self, place: Any) -> list[Guess]:
        """What may come next, best first."""


def trust(matched: int) -> float:
    """Chance of what followed so many matching tokens to follow again, as measured on chat output."""
    return matched / (matched + 2)


def chosen(owner: Part, *drafters: Drafter) -> Draw:
    """The one kind of draws that survives a selection by token; any other cannot be built."""
    for drafter in drafters:
        if drafter.draws is not Draw.TOPK:
            raise Unsound(
                f"{owner} selects guesses by their tokens, which biases drawn ones; use draws=topk in {drafter}"
            )
    return Draw.TOPK
