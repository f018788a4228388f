"""A chain with siblings beside every token, fewer where the drafter is sure.

SWIFT (arXiv 2410.06916): the drafter's best token is followed while its probability is at least
`stop`; the token that falls below is kept, and nothing is drafted after it. Every position also
verifies the drafter's next best tokens: 3 in all where the first has more than 0.95, 5 above 0.8, 8
above 0.5, else 10; at a temperature 1, 3, 5 and 10.

The number of siblings depends on the first of them, which was drawn before the others and is always
kept, so drawn siblings keep the target's distribution too.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune
from sapwood.errors import SapwoodError
from sapwood.policies.chain import first_path

BOUNDS = (0.95, 0.8, 0.5)  # probabilities of the first token that must be exceeded


@dataclass
class Swift(Part):
    """A chain that ends with an unlikely token, with siblings beside each of its tokens."""

    stop: float = 0.8  # least probability of a token after which drafting goes on
    # children of a position by the probability of the first: above 0.95, 0.8, 0.5, and below;
    # of a shorter list the last number holds for the rest
    greedy: list[int] = field(default_factory=lambda: [3, 5, 8, 10])
    sampled: list[int] = field(default_factory=lambda: [1, 3, 5, 10])  # at a temperature

    paper: ClassVar[str] = "2410.06916"
    prunes: ClassVar[Prune] = Prune.GROUPS
    bounds: ClassVar[tuple[float, ...]] = BOUNDS

    def __post_init__(self) -> None:
        between(0, 1, stop=self.stop)
        for name, widths in (("greedy", self.greedy), ("sampled", self.sampled)):
            if not widths:
                raise SapwoodError(f"{name} of swift must list numbers of children, not {widths}")
            at_least(1, **{f"{name}[{index}]": width for index, width in enumerate(widths)})

    def reset(self, request: RequestContext) -> None:
        """Choose the numbers of children."""
        self.widths_ = self.greedy if request.sampler.sampling.greedy else self.sampled

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, until an unlikely token or the budget ends it."""
        tip = first_path(tree)[-1]
        room = budget.nodes + 1 - len(self._kept(tree, budget))
        unlikely = tip != ROOT and tree.probs[tip] < self.stop
        if tree.expanded[tip] or unlikely or tree.depths[tip] >= budget.depth or room <= 0:
            return []
        return [(tip, min(max(self.widths_), budget.width, room))]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The chain and the siblings of each token that its probability calls for."""
        kept = self._kept(tree, budget)
        return tree if len(kept) == len(tree) else tree.keep(kept)

    def _kept(self, tree: Tree, budget: Budget) -> list[int]:
        """The nodes to verify, position by position, as far as the budget allows."""
        kept = [ROOT]
        for node in first_path(tree)[:-1]:
            children = tree.children(node)
            kept += children[: self._width(float(tree.probs[children[0]]))]
        return kept[: budget.nodes + 1]

    def _width(self, prob: float) -> int:
        """Children of a position whose first one has this probability."""
        place = next((i for i, bound in enumerate(self.bounds) if prob > bound), len(self.bounds))
        return self.widths_[min(place, len(self.widths_) - 1)]
