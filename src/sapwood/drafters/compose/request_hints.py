"""Drafter of one request together with the request's hints: its grammar and its prediction.

Hints expand first and add chosen nodes with sources of their own. Where one of them is sure, the
drafter does not expand. Nodes of the drafter that the grammar forbids are closed with a reach of 0,
so that no level is spent below them.
"""

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import HINTS, Tree
from sapwood.core.types import Draw, TreeShape
from sapwood.core.whole_tree import WholeTreeDrafter, drafts_whole_trees
from sapwood.drafters.lookup.forced import Forced
from sapwood.drafters.lookup.prediction import Prediction
from sapwood.structured_output.grammar_matcher import GrammarMatcher

SOURCES: dict[type, int] = {Forced: HINTS, Prediction: HINTS + 1}


@dataclass
class RequestHints(Part, WholeTreeDrafter):
    """A drafter with the request's grammar and prediction."""

    drafter: Drafter
    hints: list[Drafter] = field(default_factory=lambda: [Forced()])

    def __post_init__(self) -> None:
        for hint in self.hints:
            hint.source = SOURCES[type(hint)]

    @property
    def fan(self) -> int:
        """The drafter's fan, and one per hint."""
        return self.drafter.fan + len(self.hints)

    @property
    def draws(self) -> Draw:
        """The drafter's draws beside chosen nodes; `Recipe` has checked that they may be mixed."""
        return self.drafter.draws if self.drafter.draws in (Draw.TOPK, Draw.IID) else Draw.MIXED

    @property
    def needs(self) -> frozenset[str]:
        """The drafter's needs."""
        return self.drafter.needs

    def reset(self, request: RequestContext) -> None:
        """Begin a request."""
        self.guide_: GrammarMatcher | None = request.sampler.guide
        super().reset(request)

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """A whole tree: the prediction if that is expected to bring more, else the drafter's.

        None, so that trees are grown node by node, under a grammar, and for a drafter that starts
        from other drafters' nodes.
        """
        inner = self.drafter if drafts_whole_trees(self.drafter) else None
        if self.guide_ is not None or (inner is not None and inner.accepts_seed()):
            return None
        for hint in self.hints:
            if isinstance(hint, Prediction) and hint.matches_text():
                tree = hint.likely_path(root, shape.longest)
                if np.cumprod(tree.probs[1:]).sum() > shape.hope:
                    return tree
        return None if inner is None else inner.draft_tree(root, shape)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the hints add their children, then the drafter where none of them is sure."""
        first = len(tree)
        frontier = self._open(tree, frontier)
        for hint in self.hints:
            hint.expand(tree, frontier, rng)
        sure = set(tree.parents[first:][tree.probs[first:] >= 1].tolist())
        if left := [(node, width) for node, width in frontier if node not in sure]:
            self.drafter.expand(tree, left, rng)
        if self.guide_ is not None:
            close_forbidden(tree, first, self.guide_)

    def _open(self, tree: Tree, frontier: Frontier) -> Frontier:
        """The nodes after which the grammar lets the text go on."""
        if self.guide_ is None:
            return frontier
        places = [(request, self.guide_.state(tree.spell(request[0])[1:])) for request in frontier]
        return [request for request, state in places if state is not None and not state.done]


def close_forbidden(tree: Tree, first: int, guide: GrammarMatcher) -> None:
    """Close chosen nodes from `first` on that the grammar forbids, with probability 0."""
    for node in (np.flatnonzero(~tree.sampled[first:]) + first).tolist():
        if not guide.allows(tree.spell(node)[1:]):
            tree.close(node)
            tree.probs[node] = 0.0


def hints_of(sampling: Sampling) -> list[Drafter]:
    """The hints of a request."""
    hints: list[Part] = []
    if sampling.grammar is not None:
        hints.append(Forced())
    if sampling.prediction:
        hints.append(Prediction())
    return cast(list[Drafter], hints)
