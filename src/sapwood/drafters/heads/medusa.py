"""Medusa (arXiv 2401.10774): heads for the next positions, all over the same hidden state.

The heads run once a round. They do not read each other's tokens, so the children of a node depend
on its depth alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_kv_cache import best
from sapwood.drafters.heads.last_state_base import LastStateBase
from sapwood.drafters.propose import ranks_do

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Medusa(LastStateBase):
    """Trained heads for several positions ahead, independent of each other."""

    paper: ClassVar[str] = "2401.10774"
    trained: ClassVar[str] = "medusa"

    def reset(self, request: RequestContext) -> None:
        """Begin without logits."""
        super().reset(request)
        self._forget()

    def observe(self, outcome: Outcome) -> None:
        """Drop the logits of this round."""
        super().observe(outcome)
        self._forget()

    def close(self) -> None:
        """Free the logits."""
        super().close()
        self._forget()

    def _forget(self) -> None:
        self.states_: Tensor | None = None  # [heads, width]
        self.logits_: Tensor | None = None  # [heads, draft vocab]
        # tokens and probabilities of each head, [heads, width] both
        self.best_: tuple[IntArray, FloatArray] | None = None

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """Add the best tokens of the head at each node's depth."""
        if self.logits_ is None:
            states = self.net.states(thought)
            self.states_, self.logits_ = states[:, 0], self.net.logits(states)[:, 0]
        assert self.states_ is not None
        depths = tree.depths[[node for node, _ in frontier]].tolist()
        tree.states.update(
            (node, self.states_[depth]) for (node, _), depth in zip(frontier, depths, strict=True)
        )
        if ranks_do(tree, self.draws, self.sampler_):
            tokens, chances = self._best(self.logits_, max(width for _, width in frontier))
            for (node, width), depth in zip(frontier, depths, strict=True):
                guesses = tokens[depth, :width].tolist()
                probs = chances[depth, :width].tolist()
                tree.extend(node, guesses, probs, source=self.source)
            return
        self._add_children(
            tree, frontier, self.logits_[depths], rng, self.sampler_, self.committed_
        )

    def _best(self, logits: "Tensor", wide: int) -> tuple[IntArray, FloatArray]:
        """Best tokens of every head and their probabilities; cached within a round."""
        if self.best_ is None or self.best_[0].shape[1] < min(wide, len(self.tokens)):
            self.best_ = best(logits, wide, self.tokens)
        return self.best_
