"""Drafts tokens that the request's grammar forces: they are never rejected."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw


@dataclass
class Forced(Part):
    """The tokens that the request's grammar forces."""

    draws: ClassVar[Draw] = Draw.TOPK
    needs: ClassVar[frozenset[str]] = frozenset()

    def reset(self, request: RequestContext) -> None:
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
