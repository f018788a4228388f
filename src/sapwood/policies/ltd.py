"""Depth and size of the tree by two trained networks.

Learning to Draft (arXiv 2603.01639): after each level a first network gets the path probabilities
of that level, the depth and the length of the context, and decides to stop or go on; when the tree
is grown, a second one gets the cumulative probability of the best nodes and chooses how many of
them are checked. Both were rewarded with tokens per second, so they fit the machine and the drafter
they were trained with. The tree is EAGLE's: the best leaves of each level get children.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.numpy_mlp import load
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome, Prune
from sapwood.estimators.raw import Raw
from sapwood.policies.reach import value

KIND = "ltd"
BEST = 10  # nodes of the last level among the depth policy's inputs
FAINT = -20.0  # log probability that stands for a missing node
# units of depth and context in the inputs
DEEP = 10.0
LONG = 1000.0
RAW = Raw()


@dataclass
class Ltd(Part):
    """Depth and size of the tree by two trained policies, rewarded with tokens per second."""

    beam: int = 10  # leaves expanded per level
    weights: str = ""  # folder of the trained policies; empty: those trained for this model

    paper: ClassVar[str] = "2603.01639"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam)

    def bind(self, setting: EngineContext) -> None:
        """Load both policies."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.depth_net = bundle.nets["depth"]
        self.size_net = bundle.nets["size"]
        self.sizes = [int(size) for size in bundle.facts["sizes"]]
        self.deepest = int(bundle.facts["deepest"])

    def reset(self, request: RequestContext) -> None:
        """Begin at the prompt's length."""
        self.context_ = len(request.prompt) - 1

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves of the deepest level, until the depth policy stops; always one level."""
        height = tree.height
        if height >= min(budget.depth, self.deepest):
            return []
        reach = value(tree, RAW)
        if (
            height
            and self.depth_net(level_view(reach[tree.level(height)], height, self.context_))[0] <= 0
        ):
            return []
        level = [node for node in tree.level(height) if not tree.expanded[node]]
        return [
            (node, budget.width)
            for node in sorted(level, key=lambda node: -reach[node])[: self.beam]
        ]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Keep the likeliest nodes, in the number that the size policy chooses."""
        reach = value(tree, RAW)
        votes = self.size_net(tree_view(reach[1:], tree.height, self.context_, self.sizes))
        return tree.best(min(self.sizes[int(np.argmax(votes))], budget.nodes))

    def observe(self, outcome: Outcome) -> None:
        """Update the length of the context."""
        self.context_ = outcome.context + outcome.verdict.accepted + 1


def level_view(reach: FloatArray, depth: int, context: int) -> FloatArray:
    """Inputs of the depth policy: log path probs of the best nodes, depth, context, [BEST + 2]."""
    best = np.sort(reach)[::-1][:BEST]
    logs = np.full(BEST, FAINT)
    logs[: len(best)] = np.log(np.maximum(best, np.exp(FAINT)))
    return np.append(logs, (depth / DEEP, context / LONG))


def tree_view(reach: FloatArray, depth: int, context: int, sizes: Sequence[int]) -> FloatArray:
    """Inputs of the size policy: summed path probs of each size, depth, context, [sizes + 2]."""
    sums = np.cumsum(np.append(0.0, np.sort(reach)[::-1]))
    return np.append(sums[np.minimum(sizes, len(sums) - 1)], (depth / DEEP, context / LONG))
