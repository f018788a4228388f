"""The target in fewer bits drafts for the target (QSpec, arXiv 2410.11305).

QSpec drafts with four-bit rows and weights and checks with the same weights and sixteen-bit rows, over one
cache: the check writes exact keys over drafted ones. Here a packed target keeps its weights too: rows of
the layers that it runs in fifteen bits are drafted in eight, over the target's own keys and values. Below
eight bits, weights go to a coarser grid as well. They stay in eight-bit kernels, so that this is the
method and saves no time. A float target on a CPU drafts in packed eight-bit weights with keys of its own;
elsewhere its weights are only rounded.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.own import Own
from sapwood.part import between
from sapwood.protocols import Backend


@dataclass
class QuantizedSelf(Own):
    """The target itself in fewer bits, over its own keys and values where they fit."""

    bits: int = 8  # of a weight and of a row's numbers, 2 to 8; weights never go below, rows stay at eight

    paper: ClassVar[str] = "2410.11305"

    def __post_init__(self) -> None:
        between(2, 8, bits=self.bits)

    def variant(self, target: Any) -> Backend:
        """The target in fewer bits."""
        made: Backend = target.variant(bits=self.bits)
        return made
