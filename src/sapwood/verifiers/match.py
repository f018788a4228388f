"""Draw the target's own token at each node, with noise keyed by position, and follow it.

The tree only decides how many of plain decoding's tokens come out of one pass, never which:
with the same seed the text is plain decoding's own. At temperature 0 this is the greedy walk.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import Tree
from sapwood.verifiers.walk import follow


@dataclass
class Match(Part):
    """Draw the target's token as plain decoding would; follow it while the tree holds it."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own draws."""
        return follow(tree, laws, position, rng)
