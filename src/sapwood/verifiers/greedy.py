"""Follow the target's best token.

Blockwise parallel decoding (arXiv 1811.03115) in its exact form, on any tree. Defined at
temperature 0 only.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import RequestContext, TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.errors import SapwoodError
from sapwood.verifiers.match import follow


@dataclass
class Greedy(Part):
    """Follow the target's best token; temperature 0 only."""

    paper: ClassVar[str] = "1811.03115"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def reset(self, request: RequestContext) -> None:
        """Refuse a request that wants sampling."""
        if not request.sampler.sampling.greedy:
            raise SapwoodError(
                "greedy judges at temperature 0 only, not "
                f"{request.sampler.sampling.temperature:g}; use match"
            )

    def follows(self, target: TargetProbs) -> bool:
        """True: the verdict is the walk along the target's own tokens."""
        return True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk along the best tokens."""
        return follow(tree, target, position, rng)
