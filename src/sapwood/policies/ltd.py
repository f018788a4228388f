"""Let two trained policies decide, while the tree grows, how deep it goes and how much of it is checked.

Learning to Draft (arXiv 2603.01639): after each level a first network sees the path probabilities of
that level, the depth and the length of the context, and says stop or go on; when the tree is grown, a
second one sees how the probability adds up over the tree and chooses how many of its best nodes are
checked. Both were rewarded with tokens per second, so they fit the machine and the drafter they were
trained with. The tree is EAGLE's: the best leaves of each level get children.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.estimators.raw import Raw
from sapwood.nets import load
from sapwood.part import Part, at_least
from sapwood.policies.reach import value
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Budget, Outcome, Prune
from sapwood.tree import Tree

KIND = "ltd"
BEST = 10  # nodes of the last level that the depth policy sees
FAINT = -20.0  # log probability of a node that is not there
DEEP, LONG = 10.0, 1000.0  # depth and context that count as one
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

    def bind(self, setting: Setting) -> None:
        """Load both policies."""
        bundle = load(self.weights, KIND, setting.target.info.model)
        self.depth_net, self.size_net = bundle.nets["depth"], bundle.nets["size"]
        self.sizes = [int(size) for size in bundle.facts["sizes"]]
        self.deepest = int(bundle.facts["deepest"])

    def reset(self, request: Request) -> None:
        """Begin at the prompt's length."""
        self.context_ = len(request.prompt) - 1

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves of the deepest level, unless the depth policy says stop; the first level always grows."""
        height = tree.height
        if height >= min(budget.depth, self.deepest):
            return []
        reach = value(tree, RAW)
        if height and self.depth_net(level_view(reach[tree.level(height)], height, self.context_))[0] <= 0:
            return []
        level = [node for node in tree.level(height) if not tree.expanded[node]]
        return [(node, budget.width) for node in sorted(level, key=lambda node: -reach[node])[: self.beam]]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """As many of the likeliest nodes as the size policy chooses."""
        reach = value(tree, RAW)
        votes = self.size_net(tree_view(reach[1:], tree.height, self.context_, self.sizes))
        return tree.best(min(self.sizes[int(np.argmax(votes))], budget.nodes))

    def observe(self, outcome: Outcome) -> None:
        """Follow the length of the context."""
        self.context_ = outcome.context + outcome.verdict.accepted + 1


def level_view(reach: FloatArray, depth: int, context: int) -> FloatArray:
    """What the depth policy sees: the largest log path probabilities of a level, depth, context; [BEST + 2]."""
    best = np.sort(reach)[::-1][:BEST]
    logs = np.full(BEST, FAINT)
    logs[: len(best)] = np.log(np.maximum(best, np.exp(FAINT)))
    return np.append(logs, (depth / DEEP, context / LONG))


def tree_view(reach: FloatArray, depth: int, context: int, sizes: Sequence[int]) -> FloatArray:
    """What the size policy sees: path probability of the best nodes of each size, depth, context; [sizes + 2]."""
    sums = np.cumsum(np.append(0.0, np.sort(reach)[::-1]))
    return np.append(sums[np.minimum(sizes, len(sums) - 1)], (depth / DEEP, context / LONG))
