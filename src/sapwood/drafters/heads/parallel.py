"""ParallelSpec (arXiv 2410.05589): all depths of a round in one call of a head with mask rows.

The distributions are marginal, as Medusa's are: all nodes of a depth share one. A round costs one
call, for any depth and width of its tree.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.heads.head_kv_cache import best
from sapwood.drafters.propose import ranks_do

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Parallel(Eagle3):
    """A trained layer that drafts several tokens in one call, by mask rows."""

    name: ClassVar[str] = "parallel"
    paper: ClassVar[str] = "2410.05589"
    trained: ClassVar[str] = "parallel"

    def bind(self, setting: EngineContext) -> None:
        """Load the head and attach the target's output head."""
        super().bind(setting)
        model = setting.target.capabilities.model
        net: Any = self.net
        self.embedding = model.get_input_embeddings().weight  # whole: it is part of the network
        net.attach(self.embedding, model.get_output_embeddings().weight)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children of each node from the logits of its depth; none below the last depth."""
        import torch

        frontier = [
            (node, width) for node, width in frontier if tree.depths[node] < self.net.config.depth
        ]
        with torch.inference_mode():
            if not frontier or (not self.rows_ and not self._read(tree)):
                return
            tree.states.update(
                (node, self.outputs_[int(tree.depths[node])]) for node, _ in frontier
            )
            if ranks_do(tree, self.draws, self.sampler_):
                self._choose_by_depth(tree, frontier)
            else:
                self._draw(
                    tree,
                    frontier,
                    self.laws_[[int(tree.depths[node]) for node, _ in frontier]],
                    rng,
                )

    def _read(self, tree: Tree) -> bool:
        """Run the new text and the mask rows behind it; sets the logits of all depths."""
        import torch

        if not super()._read(tree):
            return False
        net: Any = self.net
        cache = self.cache_
        count = net.config.depth - 1
        if count:
            steps = torch.arange(1, count + 1, device=self.embedding.device)
            states, embeds = net.masks[:, None]  # each [1, rows, width]
            query, key, value = net.midlayer.project(
                embeds, states, (self.committed_ - 1 + steps)[None]
            )
            cache.write(key, value, cache.text)
            slots = torch.arange(cache.text + count, device=self.embedding.device)
            mask = slots < cache.text + steps[:, None]  # the text and the mask rows up to its own
            cache.outputs[1 : count + 1] = self._finish(states, query, cache.text + count, mask)
        self.outputs_ = cache.outputs[: count + 1].clone()  # [depths, width]
        self.laws_: Tensor = net.logits(self.outputs_)  # [depths, draft vocab]
        return True

    def _choose_by_depth(self, tree: Tree, frontier: Frontier) -> None:
        """The best tokens of each depth, which all its nodes share."""
        depths = sorted({int(tree.depths[node]) for node, _ in frontier})
        tokens, probs = best(self.laws_[depths], max(width for _, width in frontier), self.tokens)
        for node, width in frontier:
            at = depths.index(int(tree.depths[node]))
            tree.extend(
                node, tokens[at, :width].tolist(), probs[at, :width].tolist(), source=self.source
            )
