"""Speculative cascades: a deferral rule decides whose distribution a token follows (lossy).

Narasimhan et al. (arXiv 2405.19261). A cascade lets the small model decide where it is sure enough
and defers to the large one elsewhere. Carried out speculatively, each position has a distribution
pi made of the drafter's q and the target's p, and a drafted token is accepted with chance min(1,
pi / q), else a token is drawn from norm((pi - q)+): the output follows pi exactly, which is not p.

    chow   pi = q unless max q < 1 - alpha
    diff   pi = q unless max q < max p - alpha
    opt    pi = q unless max q < max p - alpha TV(p, q); the paper's plug-in for the best rule
    token  pi = q on tokens of p >= (1 - alpha) max p, and p for the rest of q's mass

At temperature 0 the maxima are those of the whole softmax, and a chosen token that is not deferred
is accepted. The token after the last drafted one is the target's own, since q ends there.
"""

import enum
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.uncertainty import peak_at, probs_at
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import residual


class Deferral(enum.Enum):
    """Rule by which a position is left to the target."""

    CHOW = "chow"
    DIFF = "diff"
    OPT = "opt"
    TOKEN = "token"


@dataclass
class Cascades(Part):
    """LOSSY: accept by p/q against a mixture of p and q that a deferral rule makes."""

    deferral: Deferral = Deferral.OPT
    alpha: float = 0.5  # leniency, 0 to 1; larger keeps more of the drafter's tokens

    paper: ClassVar[str] = "2405.19261"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, alpha=self.alpha)

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the first children while the mixture accepts them."""
        path = [ROOT]
        while True:
            child, token = self._step(tree, target, path[-1], position + len(path), rng)
            if child is None:
                return Verdict(tuple(path), token)
            path.append(child)

    def _step(
        self, tree: Tree, target: TargetProbs, node: int, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        """The accepted child, or None and the next token."""
        children = tree.children(node)
        if children and tree.sampled[children[0]]:
            child = children[0]
            q = tree.proposal(node, child)
            mixed = self.mixture(target.probs(node), q)
            token = int(tree.tokens[child])
            chance = mixed[token] / q[token] if mixed[token] < q[token] else 1.0
            if rng.flip(float(chance), NoiseKey(position, NoiseUse.ACCEPT)):
                return child, token
            return None, rng.pick(residual(mixed, q), NoiseKey(position))
        if children and self._keeps(tree, node, children[0], target.soft(node)):
            return children[0], int(tree.tokens[children[0]])
        token = target.draw(node, position, rng)
        return tree.child(node, token), token

    def mixture(self, p: FloatArray, q: FloatArray) -> FloatArray:
        """The distribution pi of a position, [vocab]."""
        if self.deferral is Deferral.TOKEN:
            good = p >= (1.0 - self.alpha) * p.max()
            found: FloatArray = np.where(good, q, 0.0) + p * float(q[~good].sum())
            return found
        apart = 0.5 * float(np.abs(p - q).sum())
        return p if self._defers(float(p.max()), float(q.max()), apart) else q

    def _defers(self, best: float, drafted: float, apart: float) -> bool:
        """True when the target decides: of the largest p, the largest q and their distance."""
        if self.deferral is Deferral.CHOW:
            return drafted < 1.0 - self.alpha
        slack = self.alpha * (apart if self.deferral is Deferral.OPT else 1.0)
        return drafted < best - slack

    def _keeps(self, tree: Tree, node: int, child: int, p: FloatArray) -> bool:
        """True when a chosen child stands; without a stored q, p and q count as equal."""
        if not p[tree.tokens[child]]:  # forbidden, by a grammar for example
            return False
        if self.deferral is Deferral.TOKEN:
            return bool(p[tree.tokens[child]] >= (1.0 - self.alpha) * p.max())
        q = probs_at(tree, node)
        apart = 0.0 if q is None else 0.5 * float(np.abs(p - q).sum())
        return not self._defers(float(p.max()), peak_at(tree, node), apart)
