"""ReDrafter (arXiv 2403.09919): a recurrent head with a state for each path of the tree.

A round begins from the target's hidden state at the last accepted token; the root's token makes
the first step. A node costs one step from its parent's state: there is no attention and nothing to
keep.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_base import HeadBase, first_missing
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Recurrent(HeadBase):
    """A small recurrent head that starts from the target's state and follows drafted tokens."""

    paper: ClassVar[str] = "2403.09919"
    reads_scores = True
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "recurrent"

    def bind(self, setting: EngineContext) -> None:
        """Load the head and have the target keep its final states."""
        super().bind(setting)
        target = setting.target
        depth = target.capabilities.layers
        if self.net.config.layer != depth:
            raise SapwoodError(
                f"this {self.trained} head reads the state after {self.net.config.layer} layers "
                f"and {target.info.model} has {depth}; use the model it was trained for"
            )
        target.watch([depth])

    def reset(self, request: RequestContext) -> None:
        """Take the target's hidden state before the root."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1
        read = request.session.prefill_output(1)
        self.thought_: Tensor | None = (
            None if read is None else read.hidden([0], [self.net.config.layer])
        )
        self.rows_: dict[int, int] = {}  # node -> row of its state
        self.states_: Tensor = self.embedding.new_empty(CAPACITY, self.net.state_width)

    def observe(self, outcome: Outcome) -> None:
        """Take the target's hidden state at the end of the accepted path."""
        path = outcome.verdict.path
        self.thought_ = outcome.scores.hidden(path[-1:], [self.net.config.layer])
        self.committed_ = outcome.context + len(path)
        self.rows_ = {}

    def close(self) -> None:
        """Free the states."""
        self.thought_ = None
        del self.states_

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Compute the state of each node of the frontier and add its children."""
        import torch

        if self.thought_ is None:
            return
        with torch.inference_mode():
            first = self.net.begin(self.thought_)  # [1, width]
            if not self.rows_:
                self._step(tree, [ROOT], first)
            nodes = [node for node, _ in frontier]
            while missing := first_missing(tree, nodes, self.rows_):
                self._step(
                    tree,
                    missing,
                    self.states_[[self.rows_[int(up)] for up in tree.parents[missing]]],
                )
            states = self.states_[[self.rows_[node] for node in nodes]]
            logits = self.net.logits(self.net.outputs(states, first.expand_as(states)))
            self._add_children(tree, frontier, logits, rng, self.sampler_, self.committed_)

    def _step(self, tree: Tree, nodes: list[int], before: "Tensor") -> None:
        """Compute the states of these nodes from their parents' states, [nodes, width]."""
        import torch

        tokens = torch.from_numpy(np.asarray(tree.tokens[nodes])).to(self.embedding.device)
        made = self.net.step(before, self.embedding[tokens])
        first = len(self.rows_)
        stop = len(self.rows_) + len(nodes)
        self.states_[first:stop] = made
        self.rows_.update(zip(nodes, range(first, stop), strict=True))
        tree.states.update(zip(nodes, made, strict=True))
