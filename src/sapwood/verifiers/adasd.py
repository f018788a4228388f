"""Excuse a refused token where draft and target think alike, by a threshold that sets itself.

AdaSD (arXiv 2512.11280): a token that fails the exact test stands nevertheless if the Jensen-Shannon distance of p
and q is below the middle between the mean distance of accepted tokens and that of refused ones. In the
paper excused tokens count as accepted, which pulls the threshold up with every excuse; here the two means are
over the verdicts of the exact test alone, old ones fade, and nothing is excused before both are known. Where a
drafter leaves no law there is no distance, and the exact test stands. The stop rule that belongs to it is
`adasd-stop`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.doubt import Mean, distance, law_at
from sapwood.part import Part, between
from sapwood.protocols import Laws, Request
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.walk import in_turn

exact = in_turn(replacement=True, most=1)  # the coin and the residual of speculative sampling


@dataclass
class AdaSd(Part):
    """LOSSY: the exact test, and excuses where draft and target laws are close by a moving threshold."""

    fade: float = 0.95  # weight that a distance keeps after the next one of its kind; 1 forgets nothing

    paper: ClassVar[str] = "2512.11280"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)

    def reset(self, request: Request) -> None:
        """Begin without a record."""
        self.accepted_, self.refused_ = Mean(self.fade), Mean(self.fade)

    @property
    def threshold(self) -> float:
        """Distance below which a refused token is excused; 0 while one of the means is unknown."""
        accepted, refused = self.accepted_.value, self.refused_.value
        return 0.0 if accepted is None or refused is None else (accepted + refused) / 2

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down what passes the exact test or is excused, then move the threshold."""
        path, limit, seen = [ROOT], self.threshold, list[tuple[float, bool]]()
        while True:
            node = path[-1]
            child, token = self.test(tree, laws, node, position + len(path), rng)
            q = law_at(tree, node)
            if q is not None:
                seen.append((distance(laws.soft(node), q), child is not None))
                if child is None and seen[-1][0] < limit:
                    child = tree.children(node)[0]
            if child is None:
                break
            path.append(child)
        for apart, passed in seen:
            (self.accepted_ if passed else self.refused_).add(apart)
        return Verdict(tuple(path), token)

    def test(self, tree: Tree, laws: Laws, node: int, position: int, rng: Rng) -> tuple[int | None, int]:
        """The exact test: the coin for a token that was drawn, the target's own token for one that was chosen."""
        children = tree.children(node)
        if children and tree.sampled[children[0]]:
            return exact(tree, node, laws.law(node), position, rng)
        token = laws.draw(node, position, rng)
        return tree.child(node, token), token
