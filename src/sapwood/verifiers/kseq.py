"""k-SEQ: one common discount for all of a node's independent draws, instead of a residual after each.

SpecTr (arXiv 2310.15141). Each of k draws from q is accepted with chance min(1, p(x) / (rho q(x))), and after j
refusals the token is due from

    p - min(p / rho, q) (1 - (1 - beta)^j) / beta,   beta = sum min(p / rho, q),

which is nowhere negative if rho >= (1 - (1 - beta)^k) / beta. The smallest such rho, between 1 and k, accepts at
least 1 - 1/e as often as the best rule there is.

The paper fixes k beforehand, and so does `shape` here. A rho that was set for the draws at hand would be wrong
where a policy decides by the first draw whether there is a second; a rho for more draws than come is only less
generous, and draws beyond k are judged by the rule anew, as are those of another drafter, against what is left of p.
The paper also pools the drafts that begin alike. Here each node's own children are judged: policies need not uncover
the children of twins in the order in which a pool would judge them.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Place, Rng, Use
from sapwood.tree import Tree
from sapwood.verifiers.walk import Step, check_shape, norm, of_level, walk

HALVINGS = 40  # of the interval that holds rho; what is left of it costs no acceptance that could be measured


@dataclass
class Kseq(Part):
    """Test independent draws under one common discount for as many as the shape tells."""

    shape: list[int] = field(default_factory=lambda: [4, 2, 1])  # children of a node by level, the last for all below

    paper: ClassVar[str] = "2310.15141"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shape("kseq", self.shape)

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, laws, position, rng, discounted(self.shape))


def discounted(shape: list[int]) -> Step:
    """The rule that tests as many draws as the shape tells under one discount."""

    def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
        draws, slot, most = tree.children(node), 0, of_level(shape, int(tree.depths[node]))
        while draws:
            source = tree.sources[draws[0]]
            run = [child for child in draws if tree.sources[child] == source][:most]
            q = tree.law(node, run[0])
            claim = np.minimum(p / discount(p, q, most), q)  # the chance that one draw comes and is accepted, [vocab]
            for child in run:
                token = int(tree.tokens[child])
                if rng.flip(float(claim[token] / q[token]), Place(position, Use.ACCEPT, slot)):
                    return child, token
                slot += 1
            p = after(p, claim, len(run))
            draws = [child for child in draws if child not in run]
        return None, rng.pick(p, Place(position))

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
    """The law of the token after so many refusals."""
    beta = min(float(claim.sum()), 1.0)
    return norm(p - claim * ((1 - (1 - beta) ** refused) / beta), p) if beta > 0 else p
