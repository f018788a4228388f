"""The draft probability as it is: the surrogate every dynamic tree of the literature starts from."""

from dataclasses import dataclass

from sapwood.arrays import FloatArray
from sapwood.part import Part
from sapwood.tree import Tree


@dataclass
class Raw(Part):
    """Trust the drafter: the chance of a node is its draft probability."""

    def lines(self, source: int) -> None:
        """No corrections, for growth that values nodes elsewhere."""

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """The drafter's own words."""
        return tree.probs[start:]
