"""Amphista (arXiv 2406.13170): heads for the next positions that read each other.

The stages and heads run once a round; the children of a node depend on its depth alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.drafters.heads.text_layers_base import TextLayersBase

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Amphista(TextLayersBase):
    """Trained heads for several positions ahead, joined by attention in both directions."""

    paper: ClassVar[str] = "2406.13170"
    trained: ClassVar[str] = "amphista"

    def _forget(self) -> None:
        super()._forget()
        self.outputs_: Tensor | None = None  # [heads, width]
        self.logits_: Tensor | None = None  # [heads, draft vocab]

    def _propose(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add the tokens of the head at each node's depth."""
        if self.outputs_ is None or self.logits_ is None:
            self.outputs_ = self.net.states(self.last_)[:, 0]
            self.logits_ = self.net.logits(self.outputs_)
        nodes = [node for node, _ in frontier]
        depths = tree.depths[nodes].tolist()
        tree.states.update(zip(nodes, self.outputs_[depths], strict=True))
        self._add_children(
            tree, frontier, self.logits_[depths], rng, self.sampler_, self.committed_
        )
