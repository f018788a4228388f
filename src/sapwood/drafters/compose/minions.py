"""Several drafters vote on each token, weighted by how often each was right.

Minions (arXiv 2402.15678): the drafts of several small models are put into one weighted tree. A
token's weight is the sum of the weights of the drafters that propose it, a drafter's weight its
past acceptance, and the path of most votes is checked, at the cost of one draft. Here the votes of
a node's children, as shares, stand in the place of the drafters' probabilities, so that any policy
can use them; `beam-path` takes the path of most votes.

Votes look at tokens, so the drafters must choose them: of drawn tokens a majority has no known
distribution.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.common.uncertainty import bits
from sapwood.core.array_types import FloatArray
from sapwood.core.part import between
from sapwood.core.protocols import Drafter, EngineContext, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome, TreeShape
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.merge import MOST, Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.lookup_base import chosen
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix

PRIOR = 1.0  # accepted and rejected tokens, each, that every drafter begins with


@dataclass
class Minions(Merge):
    """Weighted votes of several drafters on each token; weights are past acceptance."""

    drafters: list[Drafter] = field(
        default_factory=lambda: [
            Suffix(),
            AutoDraftModel(otherwise=None),
            AutoHead(otherwise=Recycling()),
        ]
    )
    fade: float = 0.98  # weight that a verified token keeps after the next one of its drafter

    paper: ClassVar[str] = "2402.15678"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(0, 1, fade=self.fade)

    @property
    def draws(self) -> Draw:
        """Chosen tokens alone."""
        return chosen(self, *self.drafters)

    def bind(self, setting: EngineContext) -> None:
        """Begin with equal weights, shared by all requests."""
        super().bind(setting)
        self.right = np.zeros(MOST)  # accepted and verified tokens by source
        self.tried = np.zeros(MOST)

    def weights(self) -> FloatArray:
        """Share of each source's verified tokens that was accepted, [sources]."""
        found: FloatArray = (self.right + PRIOR) / (self.tried + 2 * PRIOR)
        return found

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """No whole trees: every drafter votes on every node."""
        return None

    def prelaunch(self, shape: TreeShape, tree: Tree) -> None:
        """None: there is no whole tree to launch."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let every drafter propose its best token, and value tokens by their share of votes."""
        size = len(tree)
        super().expand(tree, [(node, 1) for node, _ in frontier], rng)
        weights = self.weights()
        voters = sum(
            float(weights[source]) for source in range(self.source, self.source + self.fan)
        )
        for child in range(size, len(tree)):
            votes = sum(float(weights[source]) for source in bits(int(tree.sources[child])))
            tree.probs[child] = min(1.0, votes / voters)

    def observe(self, outcome: Outcome) -> None:
        """Count each drafter's verified tokens, then let it learn."""
        hit, tried = outcome.verified_nodes()
        for node in np.flatnonzero(tried).tolist():
            for source in bits(int(outcome.grown.sources[node])):
                self.right[source] = self.fade * self.right[source] + float(hit[node])
                self.tried[source] = self.fade * self.tried[source] + 1.0
        super().observe(outcome)
