"""Clover (arXiv 2405.00263): heads over a state that follows the drafted tokens.

The augmenting block reads the text once. A node costs one step of the attention decoder from its
parent's state, and its children come from the head of its depth.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.heads.head_base import first_missing
from sapwood.drafters.heads.text_layers_base import TextLayersBase

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Clover(TextLayersBase):
    """Trained heads over a block's state of the text, which the drafted tokens change."""

    paper: ClassVar[str] = "2405.00263"
    trained: ClassVar[str] = "clover"

    def _forget(self) -> None:
        super()._forget()
        self.states_: dict[int, Tensor] = {}  # of each node, [width]

    def _propose(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Step along the paths, then one call per depth."""
        import torch

        if not self.states_:
            self._step(tree, [ROOT], self.last_[-1])
        nodes = [node for node, _ in frontier]
        while missing := first_missing(tree, nodes, self.states_):
            above = torch.stack([self.states_[int(up)] for up in tree.parents[missing]])
            self._step(tree, missing, above)
        depths = tree.depths[nodes].tolist()
        for depth in sorted(set(depths)):
            level = [request for request, its in zip(frontier, depths, strict=True) if its == depth]
            states = torch.stack([self.states_[node] for node, _ in level])
            outputs = self.net.outputs(states, depth)
            tree.states.update(zip([node for node, _ in level], outputs, strict=True))
            self._add_children(
                tree, level, self.net.logits(outputs), rng, self.sampler_, self.committed_
            )

    def _step(self, tree: Tree, nodes: list[int], before: "Tensor") -> None:
        """Compute the states of these nodes from their parents' states, [nodes, width]."""
        import torch

        tokens = torch.from_numpy(np.asarray(tree.tokens[nodes])).to(before.device)
        made = self.net.step(before, self.net.embed(tokens))
        self.states_.update(zip(nodes, made, strict=True))
