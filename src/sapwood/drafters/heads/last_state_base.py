"""Base of drafters that use the target's final state at the last committed token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_base import HeadBase

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LastStateBase(HeadBase):
    """Several heads over one final state: head d proposes the children of nodes at depth d."""

    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    reads_scores = True

    def bind(self, setting: EngineContext) -> None:
        """Load the heads and have the target keep its final states."""
        super().bind(setting)
        self.layer = setting.target.capabilities.layers
        setting.target.watch([self.layer])

    def reset(self, request: RequestContext) -> None:
        """Take the target's final state before the root."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1  # position of the root
        read = request.session.prefill_output(1)
        # [1, width]
        self.thought_: Tensor | None = None if read is None else read.hidden([0], [self.layer])

    def observe(self, outcome: Outcome) -> None:
        """Take the target's final state at the end of the accepted path."""
        path = outcome.verdict.path
        self.thought_ = outcome.scores.hidden(path[-1:], [self.layer])
        self.committed_ = outcome.context + len(path)

    def close(self) -> None:
        """Free the state."""
        self.thought_ = None

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children to nodes that have a head for their depth, if there is a state."""
        import torch

        within = [
            (node, width) for node, width in frontier if tree.depths[node] < self.net.config.heads
        ]
        if self.thought_ is None or not within:
            return
        with torch.inference_mode():
            self._propose(tree, within, self.thought_, rng)

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """Add children to these nodes, none deeper than the number of heads."""
        raise NotImplementedError
