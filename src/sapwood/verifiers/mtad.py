"""Accept the longest drafted prefix of enough joint likelihood under the target (lossy).

MTAD (arXiv 2407.09722): a draft is the likeliest path of a beam search of the small model, and it
is verified as a whole. A prefix passes if min(1, p(x_1..x_i) / q(x_1..x_i)), the ratio of the joint
probabilities, exceeds a threshold; the longest prefix that passes is accepted, even if a shorter
one fails, since a token more likely under the target makes up for an unlikely one before it. The
token after it is the target's own. There is neither a coin nor a residual, so the distribution
changes. The policy that belongs to it is `beam-path`; on a tree every path is tested. The published
code draws the beam, and its threshold is 0.5 by default; q and p are those after temperature, top-k
and top-p, and at temperature 0 it warns that nothing is gained.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from sapwood.core.part import Part, between
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict


@dataclass
class Mtad(Part):
    """LOSSY: accept the longest path whose joint p over joint q exceeds a threshold."""

    threshold: float = 0.1  # of the ratio of joint probabilities, 0 to 1

    paper: ClassVar[str] = "2407.09722"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, threshold=self.threshold)

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """The longest path that passes, of equal ones the likeliest, and the target's token."""
        soft = cache(target.soft)
        joint = {ROOT: (0.0, 0.0)}  # node -> log p and log p/q of its path
        passed = [ROOT]
        for node in range(1, len(tree)):
            parent = int(tree.parents[node])
            if parent not in joint:
                continue
            p = float(soft(parent)[tree.tokens[node]])
            q = float(tree.probs[node])
            if not p or not q:
                continue
            likely, ratio = joint[parent]
            joint[node] = likely + math.log(p), ratio + math.log(p / q)
            if math.exp(min(joint[node][1], 0.0)) > self.threshold:
                passed.append(node)
        end = max(passed, key=lambda node: (int(tree.depths[node]), joint[node][0]))
        path = tuple(tree.path(end))
        return Verdict(path, target.draw(end, position + len(path), rng))
