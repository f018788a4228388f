"""Block verification: judge a chain as a whole instead of token by token.

Sun et al. (arXiv 2403.10444). A token far more likely under the target than under the draft earns
credit that a later, less likely one may spend, so that on every pair of laws at least as many tokens
are kept as by speculative sampling. Along the chain the chance to keep a path is

    P_0 = 1,  P_i = min(1, P_{i-1} p(x_i) / q(x_i)).

Read from the end: the last path is kept with chance P; where that fails, the one before it with chance
S / (S + 1 - P), S being the mass of (P p - q)+ at its end, and the next token comes from that excess.
The two steps together give each path exactly P times the target's law. Where a node has several
sampled children only the first is judged, as a chain has no use for the others.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

from sapwood.arrays import FloatArray
from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Place, Rng, Use
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.walk import credit, excess, follow


@dataclass
class Block(Part):
    """Keep the longest path of first children that the chain's joint likelihood supports."""

    paper: ClassVar[str] = "2403.10444"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID, Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Carry the chance down the chain, then give up nodes from its end."""
        if laws.greedy:
            return follow(tree, laws, position, rng)
        path = [ROOT]
        while children := tree.children(path[-1]):
            path.append(children[0])
        targets, chances = [laws.law(node) for node in path[:-1]], [1.0]
        drafts: list[FloatArray] = [tree.law(node, child) for node, child in itertools.pairwise(path)]
        for child, p, q in zip(path[1:], targets, drafts, strict=True):
            chances.append(credit(chances[-1], p, q, int(tree.tokens[child])))
        last = len(path) - 1
        chance, rest = chances[last], None  # of the path to `last`, and what follows it; None: the target's own law
        # all coins lie at the first position, which this round decides: the next round will judge the later ones anew
        while last and not rng.flip(chance, Place(position + 1, Use.ACCEPT, last)):
            last -= 1
            chance, rest = excess(chances[last], targets[last], drafts[last])
        law = laws.law(path[last]) if rest is None else rest
        return Verdict(tuple(path[: last + 1]), rng.pick(law, Place(position + last + 1)))
