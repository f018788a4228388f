"""Cerberus (arXiv 2410.13344): parallel heads that read each other, and a gate before them.

The gate looks at the entropy of the target's own last distribution: after an uncertain step nothing
is drafted, and the round is plain decoding. Which distribution the paper's gate reads, and its
threshold, were not available: the distribution over the heads' vocabulary and the limit are ours.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.drafters.heads.medusa import Medusa
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Cerberus(Medusa):
    """Trained heads for several positions ahead, each reading the one before, behind a gate."""

    gate: float = 4.0  # nats of the target's last distribution above which nothing is drafted, >= 0

    paper: ClassVar[str] = "2410.13344"
    trained: ClassVar[str] = "cerberus"

    def __post_init__(self) -> None:
        if not self.gate >= 0:
            raise SapwoodError(
                f"gate={self.gate} of cerberus must be 0 nats or more; 0 drafts nothing"
            )

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """Add the best tokens of the head at each node's depth, unless the gate is closed."""
        if self._entropy(thought) <= self.gate:
            super()._propose(tree, frontier, thought, rng)

    def _entropy(self, thought: "Tensor") -> float:
        """Entropy of the target's distribution after a final state [1, width], in nats."""
        logs = self.net.output_logits(thought).float().log_softmax(-1)[0]
        return float(-(logs.exp() * logs).sum())
