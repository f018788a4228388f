"""A drafter, for one request, beside what the request itself knows: its grammar and its prediction.

Aids are asked first and add chosen nodes of their own sources. Where one of them is sure, the drafter is left alone.
What a drafter guesses against the grammar is closed and worth nothing: no level is spent below it.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sapwood.drafters.forced import Forced
from sapwood.drafters.prediction import Prediction
from sapwood.guide import Guide
from sapwood.part import Part
from sapwood.protocols import Drafter, Frontier, Request
from sapwood.records import Draw, Levels
from sapwood.rng import Rng
from sapwood.sampling import Sampling
from sapwood.tree import AIDS, Tree

SOURCES: dict[type, int] = {Forced: AIDS, Prediction: AIDS + 1}


@dataclass
class Aided(Part):
    """Draft with what the request knows beside what the drafter does."""

    drafter: Drafter
    aids: list[Drafter] = field(default_factory=lambda: [Forced()])

    def __post_init__(self) -> None:
        for aid in self.aids:
            aid.source = SOURCES[type(aid)]

    @property
    def fan(self) -> int:
        """The drafter's voices and one per aid."""
        return self.drafter.fan + len(self.aids)

    @property
    def draws(self) -> Draw:
        """The drafter's draws beside chosen nodes; who uses an aid has made sure that they mix."""
        return self.drafter.draws if self.drafter.draws in (Draw.TOPK, Draw.IID) else Draw.MIXED

    @property
    def needs(self) -> frozenset[str]:
        """What the drafter needs."""
        return self.drafter.needs

    def reset(self, request: Request) -> None:
        """Begin a request."""
        self.guide_: Guide | None = request.sampler.guide
        super().reset(request)

    def grow(self, root: int, levels: Levels) -> Tree | None:
        """A whole tree: the prediction alone where that promises more, else the drafter's own, if it grows such trees.

        Under a grammar trees are grown node by node, and so they are where the drafter has to look at them meanwhile.
        """
        if self.guide_ is not None or getattr(self.drafter, "seeded", False):
            return None
        for aid in self.aids:
            if isinstance(aid, Prediction) and aid.follows:
                tree = aid.recite(root, levels.longest)
                if np.cumprod(tree.probs[1:]).sum() > levels.hope:
                    return tree
        ask: Any = getattr(self.drafter, "grow", None)
        return None if ask is None else ask(root, levels)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the aids add their children, then the drafter, where none of them is sure."""
        first, frontier = len(tree), self._open(tree, frontier)
        for aid in self.aids:
            aid.expand(tree, frontier, rng)
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


def close_forbidden(tree: Tree, first: int, guide: Guide) -> None:
    """Mark chosen nodes from `first` on that cannot become output: not to be grown, worth nothing."""
    for node in (np.flatnonzero(~tree.sampled[first:]) + first).tolist():
        if not guide.lawful(tree.spell(node)[1:]):
            tree.close(node)
            tree.probs[node] = 0.0


def aids_of(sampling: Sampling) -> list[Drafter]:
    """What a request brings along."""
    aids: list[Part] = []
    if sampling.grammar is not None:
        aids.append(Forced())
    if sampling.prediction:
        aids.append(Prediction())
    return cast(list[Drafter], aids)
