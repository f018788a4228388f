"""Draft with a small recurrent state that follows each path of the tree (ReDrafter, arXiv 2403.09919).

A round begins from what the target thought at the last accepted token; the root's token makes the
first step. A node costs one step from its parent's state: there is no attention and nothing to keep.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sapwood.drafters.headed import Headed, first_missing
from sapwood.errors import SapwoodError
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import CAPACITY, ROOT, Tree

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Recurrent(Headed):
    """A small recurrent state that begins as the target's own and follows the drafted tokens."""

    paper: ClassVar[str] = "2403.09919"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "recurrent"

    def bind(self, setting: Setting) -> None:
        """Load the head and have the target keep its final states."""
        super().bind(setting)
        target: Any = setting.target
        depth = target.model.config.get_text_config().num_hidden_layers
        if self.net.config.layer != depth:
            raise SapwoodError(
                f"this recurrent head reads the state after {self.net.config.layer} layers and {target.info.model} has "
                f"{depth}; use the model it was trained for"
            )
        target.watch([depth])

    def reset(self, request: Request) -> None:
        """Take what the target thought at the last token but one, which precedes the root."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1
        read = request.session.reading(1)
        self.thought_: Tensor | None = None if read is None else read.hidden([0], [self.net.config.layer])
        self.rows_: dict[int, int] = {}  # node -> row of its state
        self.states_: Tensor = self.embedding.new_empty(CAPACITY, self.net.config.width)

    def observe(self, outcome: Outcome) -> None:
        """Take what the target thought at the end of the accepted path."""
        path = outcome.verdict.path
        self.thought_ = outcome.scores.hidden(path[-1:], [self.net.config.layer])
        self.committed_ = outcome.context + len(path)
        self.rows_ = {}

    def close(self) -> None:
        """Free the states."""
        self.thought_ = None
        del self.states_

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Step to each node of the frontier and propose its children."""
        import torch

        if self.thought_ is None:
            return
        with torch.inference_mode():
            first = self.net.begin(self.thought_)  # [1, width]
            if not self.rows_:
                self._step(tree, [ROOT], first)
            nodes = [node for node, _ in frontier]
            while missing := first_missing(tree, nodes, self.rows_):
                self._step(tree, missing, self.states_[[self.rows_[int(up)] for up in tree.parents[missing]]])
            states = self.states_[[self.rows_[node] for node in nodes]]
            logits = self.net.logits(self.net.outputs(states, first.expand_as(states)))
            self._speak(tree, frontier, logits, rng, self.sampler_, self.committed_)

    def _step(self, tree: Tree, nodes: list[int], before: "Tensor") -> None:
        """Make the states of these nodes from the states before them, [nodes, width]."""
        import torch

        tokens = torch.from_numpy(np.asarray(tree.tokens[nodes])).to(self.embedding.device)
        made = self.net.step(before, self.embedding[tokens])
        first, stop = len(self.rows_), len(self.rows_) + len(nodes)
        self.states_[first:stop] = made
        self.rows_.update(zip(nodes, range(first, stop), strict=True))
        tree.states.update(zip(nodes, made, strict=True))
