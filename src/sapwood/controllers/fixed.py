"""The same budget every round; no nodes is plain decoding."""

from dataclasses import dataclass

from sapwood.core.part import Part, at_least
from sapwood.core.types import ALWAYS, Budget


@dataclass
class Fixed(Part):
    """The same budget every round; nodes=0 is plain decoding."""

    nodes: int = 16
    depth: int = 8
    width: int = 4

    def __post_init__(self) -> None:
        at_least(0, nodes=self.nodes, depth=self.depth, width=self.width)

    @property
    def resting(self) -> int:
        """All rounds, if no tree can have a node."""
        return 0 if min(self.nodes, self.depth, self.width) else ALWAYS

    @property
    def largest(self) -> Budget | None:
        """The options themselves, unless they allow no tree."""
        return None if self.resting else Budget(self.nodes, self.depth, self.width)

    def budget(self) -> Budget:
        """The options themselves."""
        return Budget(self.nodes, self.depth, self.width)
