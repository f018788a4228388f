"""Accept a drafted token among the target's best few, if it is not far behind the best.

SpecDec (Xia et al., EMNLP Findings 2023): the token must be one of the target's `top` tokens and its log-probability
within `gap` of the best one's. top=1 or gap=0 is the greedy walk, but for
ties; a larger gap is looser.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.part import at_least, between
from sapwood.tree import Tree
from sapwood.verifiers.lenient import Belief, Lenient, surprise


@dataclass
class SpecDec(Lenient):
    """LOSSY: accept one of the target's best few tokens that is close to the best."""

    top: int = 3  # how many of the target's best tokens may pass
    gap: float = 1.0  # nats behind the best token that are let pass

    paper: ClassVar[str] = "2203.16487"

    def __post_init__(self) -> None:
        at_least(1, top=self.top)
        between(0, 100, gap=self.gap)

    def excuses(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True where the token is among the best and near the best."""
        law = belief(int(tree.parents[child]))
        own = law[tree.tokens[child]]
        behind = surprise(tree, child, belief) + float(np.log(law.max()))
        return bool((law > own).sum() < self.top) and behind <= self.gap
