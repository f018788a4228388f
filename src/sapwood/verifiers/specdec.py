"""Accept a drafted token among the target's best few, if it is not far behind the best.

SpecDec (Xia et al., EMNLP Findings 2023): the token must be one of the target's `top` tokens and
its log-probability within `gap` of the best one's. top=1 or gap=0 is the greedy walk, but for ties;
a larger gap is looser. The paper's drafter, an encoder-decoder that fills a block of mask tokens in
one pass, is trained for one pair of languages; the recipe has a head with mask rows in its place.
The released code's own defaults are top=1 and gap=0, the greedy walk; the paper relaxes both a
little, and the defaults here are a relaxation of that kind.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.part import at_least, between
from sapwood.core.tree import Tree
from sapwood.verifiers.lenient import Belief, Lenient, surprise


@dataclass
class SpecDec(Lenient):
    """LOSSY: accept one of the target's best few tokens that is close to the best."""

    top: int = 3  # number of the target's best tokens that may pass
    gap: float = 1.0  # largest accepted distance to the best token's log-probability, in nats

    paper: ClassVar[str] = "2203.16487"

    def __post_init__(self) -> None:
        at_least(1, top=self.top)
        between(0, 100, gap=self.gap)

    def accepts_instead(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True when the token is among the best and near the best."""
        probs = belief(int(tree.parents[child]))
        own = probs[tree.tokens[child]]
        behind = surprise(tree, child, belief) + float(np.log(probs.max()))
        return bool((probs > own).sum() < self.top) and behind <= self.gap
