"""Follow the target's best token.

Blockwise parallel decoding (arXiv 1811.03115) in its exact form, on any tree. Defined at
temperature 0 only.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.errors import SapwoodError
from sapwood.part import Part
from sapwood.protocols import Laws, Request
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import Tree
from sapwood.verifiers.walk import follow


@dataclass
class Greedy(Part):
    """Follow the target's best token; temperature 0 only."""

    paper: ClassVar[str] = "1811.03115"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def reset(self, request: Request) -> None:
        """Refuse a request that wants sampling."""
        if not request.sampler.sampling.greedy:
            raise SapwoodError(
                f"greedy judges at temperature 0 only, not {request.sampler.sampling.temperature:g}; use match"
            )

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk along the best tokens."""
        return follow(tree, laws, position, rng)
