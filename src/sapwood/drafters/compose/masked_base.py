"""Base of drafters that put mask rows behind the text: several tokens from one pass.

The pass over the last token and the rows predicts the next token and one more for each row. The
distributions are marginal: all nodes of a depth share one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.core.protocols import Frontier, TargetOutput
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import DraftModel, chain


@dataclass
class MaskedBase(DraftModel):
    """A draft model that scores new text and mask rows in one pass a round."""

    stands_alone = False

    def _ahead(self) -> Sequence[int]:
        """Ids of the rows behind the text, in order."""
        raise NotImplementedError

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children from the row of each node's depth; none below the last row."""
        rows = len(self._ahead())
        if self.scratch_ is None and not self._room(len(self.unread_) + rows):
            return
        super().expand(
            tree, [(node, width) for node, width in frontier if tree.depths[node] <= rows], rng
        )

    def _begin(self, tree: Tree) -> None:
        """Put the rows behind the new text, and score all of it."""
        super()._begin(tree)
        self.scratch_ = chain([*self.unread_, *self._ahead()])
        self.scores_: TargetOutput = super()._score()
        self.since_ = 0

    def _place(self, tree: Tree, node: int) -> int:
        """The row of the node's depth, whatever its token."""
        return len(self.unread_) - 1 + int(tree.depths[node])

    def _score(self) -> TargetOutput:
        """The output of this round's pass."""
        return self.scores_

    def observe(self, outcome: Outcome) -> None:
        """Keep the rows of the text alone; the emitted tokens are run in the next round."""
        if self.scratch_ is not None:
            self.session_.commit(range(len(self.unread_)))
            self.unread_ = []
        self.unread_ += outcome.tokens
        self.scratch_ = None
