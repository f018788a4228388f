"""Mask tokens with gated adapters in the verifying pass ("Your LLM Knows the Future", 2507.11851).

Quadratic decoding: every candidate has mask tokens behind it, so that wherever verification ends
there are drafts for the next round. A sampler head reads the state of a mask token and the token
before the one it predicts.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.drafters.heads.lookahead_base import LookaheadBase


@dataclass
class GatedMasks(LookaheadBase):
    """Mask tokens with adapters of their own behind every node, and a sampler head."""

    paper: ClassVar[str] = "2507.11851"
    trained: ClassVar[str] = "gated-masks"
    needs: ClassVar[frozenset[str]] = frozenset({"lookahead", "hidden"})

    def bind(self, setting: EngineContext) -> None:
        """Load the head and keep the final states of passes."""
        super().bind(setting)
        self.layer = setting.target.capabilities.layers
        setting.target.watch([self.layer])

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children by the sampler, from the mask token of each node's depth and its token."""
        import torch

        able = [(node, width) for node, width in frontier if tree.depths[node] < len(self.rows_)]
        if not able or self.found_ is None:
            return
        rows = [self.rows_[int(tree.depths[node])] for node, _ in able]
        with torch.inference_mode():
            states = self.found_.hidden(rows, [self.layer])
            tokens = torch.tensor(
                [int(tree.tokens[node]) for node, _ in able], device=states.device
            )
            logits = self.net.output_logits(self.net.sampled(states, tokens))
        self._add_children(tree, able, logits, rng, self.sampler_, self.committed_)
