"""Accept a refused token where p and q are close, by an adaptive threshold (lossy).

AdaSD (arXiv 2512.11280): a token that fails the exact test is accepted nevertheless if the
Jensen-Shannon distance of p and q is below the middle between the mean distance of accepted tokens
and that of refused ones. In the paper excused tokens count as accepted, which pulls the threshold
up with every excuse; here the two means are over the verdicts of the exact test alone, old ones
decay, and nothing is excused before both are known. Where a drafter leaves no q there is no
distance, and the exact test decides. The stop rule that belongs to it is `adasd-stop`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import DecayedMean, distance, probs_at
from sapwood.core.part import Part, between
from sapwood.core.protocols import RequestContext, TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import in_turn

exact = in_turn(replacement=True, most=1)  # the coin and the residual of speculative sampling


@dataclass
class AdaSd(Part):
    """LOSSY: accept what passes the exact test, and where p and q are closer than a threshold."""

    # weight that a distance keeps after the next one of its kind; 1 forgets nothing
    fade: float = 0.95

    paper: ClassVar[str] = "2512.11280"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)

    def reset(self, request: RequestContext) -> None:
        """Begin without a record."""
        self.accepted_ = DecayedMean(self.fade)
        self.refused_ = DecayedMean(self.fade)

    @property
    def threshold(self) -> float:
        """Distance below which a refused token is excused; 0 while one of the means is unknown."""
        accepted, refused = self.accepted_.value, self.refused_.value
        return 0.0 if accepted is None or refused is None else (accepted + refused) / 2

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down tokens that pass the exact test or are excused, then move the threshold."""
        path = [ROOT]
        limit = self.threshold
        seen = list[tuple[float, bool]]()
        while True:
            node = path[-1]
            child, token = self.test(tree, target, node, position + len(path), rng)
            q = probs_at(tree, node)
            if q is not None:
                seen.append((distance(target.soft(node), q), child is not None))
                if child is None and seen[-1][0] < limit:
                    child = tree.children(node)[0]
            if child is None:
                break
            path.append(child)
        for apart, passed in seen:
            (self.accepted_ if passed else self.refused_).add(apart)
        return Verdict(tuple(path), token)

    def test(
        self, tree: Tree, target: TargetProbs, node: int, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        """The exact test: min(1, p/q) for a drawn token, the target's token for a chosen one."""
        children = tree.children(node)
        if children and tree.sampled[children[0]]:
            return exact(tree, node, target.probs(node), position, rng)
        token = target.draw(node, position, rng)
        return tree.child(node, token), token
