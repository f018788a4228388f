"""Block verification: verify a chain as a whole instead of token by token.

Sun et al. (arXiv 2403.10444). A token far more likely under the target than under the draft earns
credit that a later, less likely one may spend, so that for every p and q at least as many tokens
are kept as by speculative sampling. Along the chain the chance to keep a path is

    P_0 = 1,  P_i = min(1, P_{i-1} p(x_i) / q(x_i)).

Read from the end: the last path is kept with chance P; where that fails, the one before it with
chance S / (S + 1 - P), S being the mass of (P p - q)+ at its end, and the next token comes from
that excess. The two steps together give each path exactly P times the target's probability. Where a
node has several sampled children only the first is tested, as a chain has no use for the others.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.match import follow
from sapwood.verifiers.walk import GreedyWalk, credit, excess


@dataclass
class Block(GreedyWalk):
    """Keep the longest path of first children that the chain's joint likelihood supports."""

    paper: ClassVar[str] = "2403.10444"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID, Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Carry the chance down the chain, then give up nodes from its end."""
        if target.greedy:
            return follow(tree, target, position, rng)
        path = [ROOT]
        while children := tree.children(path[-1]):
            path.append(children[0])
        targets = [target.probs(node) for node in path[:-1]]
        chances = [1.0]
        drafts: list[FloatArray] = [
            tree.proposal(node, child) for node, child in itertools.pairwise(path)
        ]
        for child, p, q in zip(path[1:], targets, drafts, strict=True):
            chances.append(credit(chances[-1], p, q, int(tree.tokens[child])))
        last = len(path) - 1
        # of the path to `last`, and the probs of the token after it; None: the target's own
        chance = chances[last]
        rest = None
        # all coins are keyed by the first position, which this round decides: the next round
        # verifies later positions again
        while last and not rng.flip(chance, NoiseKey(position + 1, NoiseUse.ACCEPT, last)):
            last -= 1
            chance, rest = excess(chances[last], targets[last], drafts[last])
        probs = target.probs(path[last]) if rest is None else rest
        return Verdict(tuple(path[: last + 1]), rng.pick(probs, NoiseKey(position + last + 1)))
