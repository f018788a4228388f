"""Draft with heads that each read the guesses before their own (Hydra, arXiv 2402.05109)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.drafters.last import LastState
from sapwood.protocols import Frontier
from sapwood.rng import Rng
from sapwood.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Hydra(LastState):
    """Trained heads that guess one place after the other, each knowing the path so far."""

    paper: ClassVar[str] = "2402.05109"
    trained: ClassVar[str] = "hydra"

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """One call for the nodes of each depth: their head reads the tokens from the root to the node."""
        import torch

        depths = tree.depths[[node for node, _ in frontier]].tolist()
        for depth in sorted(set(depths)):
            level = [request for request, its in zip(frontier, depths, strict=True) if its == depth]
            paths = torch.tensor([tree.spell(node) for node, _ in level], device=thought.device)  # [nodes, depth + 1]
            states = self.net.states(thought.expand(len(level), -1), paths)
            tree.states.update(zip([node for node, _ in level], states, strict=True))
            self._speak(tree, level, self.net.logits(states), rng, self.sampler_, self.committed_)
