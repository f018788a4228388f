"""k-SEQ: one common discount for all of a node's independent draws, without residuals between.

SpecTr (arXiv 2310.15141). Each of k draws from q is accepted with chance min(1, p(x) / (rho q(x))),
and after j refusals the token is due from

    p - min(p / rho, q) (1 - (1 - beta)^j) / beta,   beta = sum min(p / rho, q),

which is nowhere negative if rho >= (1 - (1 - beta)^k) / beta. The smallest such rho, between 1 and
k, accepts at least 1 - 1/e as often as the best rule there is.

The paper fixes k beforehand, and so does `shape` here. A rho set for the actual number of draws
would be wrong where a policy decides by the first draw whether there is a second; a rho for more
draws than there are only accepts less, and draws beyond k are tested by the rule again, as are
those of another drafter, against what is left of p. The paper also pools drafts with a common
prefix. Here each node's own children are tested: policies need not expand nodes of equal text in
the order in which a pool would test their children.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, Step, check_shape, norm, of_level, walk

HALVINGS = 40  # of the interval that holds rho; its remaining width costs no measurable acceptance


@dataclass
class Kseq(GreedyWalk):
    """Test independent draws under one common discount, for as many children as in `shape`."""

    # children of a node by level, the last for all deeper levels
    shape: list[int] = field(default_factory=lambda: [4, 2, 1])

    paper: ClassVar[str] = "2310.15141"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shape("kseq", self.shape)

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, target, position, rng, discounted(self.shape))


def discounted(shape: list[int]) -> Step:
    """The rule that tests as many draws as `shape` gives under one discount."""

    def step(
        tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        draws = tree.children(node)
        slot = 0
        most = of_level(shape, int(tree.depths[node]))
        while draws:
            source = tree.sources[draws[0]]
            run = [child for child in draws if tree.sources[child] == source][:most]
            q = tree.proposal(node, run[0])
            # the chance that a token is drawn and accepted, [vocab]
            claim = np.minimum(p / discount(p, q, most), q)
            for child in run:
                token = int(tree.tokens[child])
                if rng.flip(
                    float(claim[token] / q[token]), NoiseKey(position, NoiseUse.ACCEPT, slot)
                ):
                    return child, token
                slot += 1
            p = after(p, claim, len(run))
            draws = [child for child in draws if child not in run]
        return None, rng.pick(p, NoiseKey(position))

    return step


def discount(p: FloatArray, q: FloatArray, most: int) -> float:
    """The smallest rho that leaves nothing negative after `most` refusals, from above."""
    low, high = 1.0, float(most)
    for _ in range(HALVINGS if most > 1 else 0):
        rho = (low + high) / 2
        beta = float(np.minimum(p / rho, q).sum())
        if 1 - (1 - beta) ** most <= rho * beta:
            high = rho
        else:
            low = rho
    return high


def after(p: FloatArray, claim: FloatArray, refused: int) -> FloatArray:
    """The probs of the token after so many refusals."""
    beta = min(float(claim.sum()), 1.0)
    return norm(p - claim * ((1 - (1 - beta) ** refused) / beta), p) if beta > 0 else p
