"""Where the request's grammar leaves one token, draft that one: it costs nothing and is never refused."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.part import Part
from sapwood.protocols import Frontier, Request
from sapwood.records import Draw
from sapwood.rng import Rng
from sapwood.tree import Tree


@dataclass
class Forced(Part):
    """Draft the tokens that the request's grammar leaves no choice about."""

    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()

    def reset(self, request: Request) -> None:
        """Take the request's grammar."""
        self.guide_ = request.sampler.guide

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the only child that each of these nodes can have."""
        if self.guide_ is None:
            return
        for node, _ in frontier:
            state = self.guide_.state(tree.spell(node)[1:])
            token = None if state is None else state.forced()
            if token is not None:
                tree.add(node, token, 1.0, source=self.source)
