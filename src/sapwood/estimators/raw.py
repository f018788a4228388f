"""The draft probability unchanged, as dynamic trees of the literature use it."""

from dataclasses import dataclass

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.tree import Tree
from sapwood.core.types import AcceptanceTable, trust


@dataclass
class Raw(Part):
    """The draft probability of a node, unchanged."""

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Draft probability of each node from `start` on."""
        return tree.probs[start:]

    def export_table(self) -> AcceptanceTable:
        """No corrections."""
        return AcceptanceTable(trust)
