"""Hydra (arXiv 2402.05109): heads that each read the drafted tokens before their own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.drafters.heads.last_state_base import LastStateBase

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Hydra(LastStateBase):
    """Trained heads for successive positions, each reading the drafted path so far."""

    paper: ClassVar[str] = "2402.05109"
    trained: ClassVar[str] = "hydra"

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """One call per depth; its head reads the tokens from the root to each node."""
        import torch

        depths = tree.depths[[node for node, _ in frontier]].tolist()
        for depth in sorted(set(depths)):
            level = [request for request, its in zip(frontier, depths, strict=True) if its == depth]
            # [nodes, depth + 1]
            paths = torch.tensor([tree.spell(node) for node, _ in level], device=thought.device)
            states = self.net.states(thought.expand(len(level), -1), paths)
            tree.states.update(zip([node for node, _ in level], states, strict=True))
            self._add_children(
                tree, level, self.net.logits(states), rng, self.sampler_, self.committed_
            )
