"""Base of drafters whose rows for later tokens are in the target's verifying pass.

Behind every node of the tree lie rows that stand for the tokens after the next one. The pass that
verifies the tree scores them too, and the rows behind the last accepted node draft the next tree.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.core.lookahead import LookaheadRows
from sapwood.core.protocols import EngineContext, Frontier, RequestContext, TargetOutput
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_base import HeadBase


@dataclass
class LookaheadBase(HeadBase):
    """A drafter with look-ahead rows behind the nodes of its tree."""

    needs: ClassVar[frozenset[str]] = frozenset({"lookahead"})

    def bind(self, setting: EngineContext) -> None:
        """Load the rows' weights and make the model that knows them."""
        super().bind(setting)
        make = setting.target.capabilities.lookahead
        assert make is not None
        self.model: Any = make(self.net.lookahead)
        self.most = int(self.net.config.rows)  # rows behind a node
        self.context = setting.target.info.context

    def reset(self, request: RequestContext) -> None:
        """Begin without drafts: the first pass makes them."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1
        self.found_: TargetOutput | None = None  # of the rows that draft this round's tree
        self.rows_ = range(0)  # of these rows, those behind the last accepted node

    def lookahead(self, tree: Tree) -> LookaheadRows:
        """Rows behind the nodes, as far as the context has room."""
        room = self.context - self.committed_ - tree.depths - 1
        counts = np.minimum(self._counts(tree), np.maximum(room, 0))
        return LookaheadRows(self.model, self.vocab, counts.tolist())

    def _counts(self, tree: Tree) -> Any:
        """Rows behind each node, [nodes]: all of them."""
        return np.full(len(tree), self.most)

    def observe(self, outcome: Outcome) -> None:
        """Take the rows behind the last accepted node."""
        path = outcome.verdict.path
        self.committed_ = outcome.context + len(path)
        self.found_ = outcome.scores.lookahead
        found = outcome.lookahead
        self.rows_ = range(0) if found is None else found.behind(path[-1])

    def close(self) -> None:
        """Free the output of the rows."""
        self.found_ = None
        self.rows_ = range(0)


@dataclass
class MarginalBase(LookaheadBase):
    """A drafter whose rows predict by themselves: all nodes of a depth share one distribution."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children from the row of each node's depth; none below the last."""
        import torch

        able = [(node, width) for node, width in frontier if tree.depths[node] < len(self.rows_)]
        if not able or self.found_ is None:
            return
        rows = [self.found_.logits(self.rows_[int(tree.depths[node])]) for node, _ in able]
        logits = torch.from_numpy(np.stack(rows))
        self._add_children(tree, able, logits, rng, self.sampler_, self.committed_)
