"""Base of lookup drafters: each node has a position in a text, a table or a plan.

A position (`place`) is what the drafter continues from. The root's is found once a round; a child's
follows from its parent's and its own token, so nodes of other drafters have positions too.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.errors import Unsound

Candidate = tuple[int, float]  # a token and its probability


class LookupBase(Part, ABC):
    """Base of lookup drafters: keeps the text, and a place for each node of the round's tree."""

    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()

    def reset(self, request: RequestContext) -> None:
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
        """Add the best candidates at each node's place."""
        if tree is not self.tree_:
            self.tree_, self.places_ = tree, {ROOT: self.start(rng)}
        for node, width in frontier:
            place = self._place(tree, node)
            found = [] if place is None else self.candidates(place)[:width]
            tree.extend(
                node,
                [token for token, _ in found],
                [chance for _, chance in found],
                source=self.source,
            )

    def _place(self, tree: Tree, node: int) -> Any:
        if node not in self.places_:
            before = self._place(tree, int(tree.parents[node]))
            self.places_[node] = (
                None if before is None else self.step(before, int(tree.tokens[node]))
            )
        return self.places_[node]

    @abstractmethod
    def start(self, rng: Rng) -> Any:
        """The root's place, at the end of the text; None where nothing is known."""

    @abstractmethod
    def step(self, place: Any, token: int) -> Any:
        """The place after one more token; None where nothing is known."""

    @abstractmethod
    def candidates(self, place: Any) -> list[Candidate]:
        """Candidates for the next token, best first."""


def trust(matched: int) -> float:
    """Probability that the continuation of so many matching tokens repeats, on chat output."""
    return matched / (matched + 2)


def chosen(owner: Part, *drafters: Drafter) -> Draw:
    """Chosen tokens, the only kind of draws that may be selected by token; refuses others."""
    for drafter in drafters:
        if drafter.draws is not Draw.TOPK:
            raise Unsound(
                f"{owner} selects drafts by their tokens, which biases drawn ones; "
                f"use draws=topk in {drafter}"
            )
    return Draw.TOPK
