"""Draft with heads that each guess one place ahead, all from the same state (Medusa, arXiv 2401.10774).

The heads are asked once a round. They know nothing of each other's guesses, so the children of a
node depend on its depth alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.arrays import FloatArray, IntArray
from sapwood.drafters.draw import ranks_do
from sapwood.drafters.last import LastState
from sapwood.drafters.rows import best
from sapwood.protocols import Frontier, Request
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Medusa(LastState):
    """Trained heads that guess several places ahead at once, each without knowing the others."""

    paper: ClassVar[str] = "2401.10774"
    trained: ClassVar[str] = "medusa"

    def reset(self, request: Request) -> None:
        """Begin without guesses."""
        super().reset(request)
        self._forget()

    def observe(self, outcome: Outcome) -> None:
        """Drop the guesses of this round."""
        super().observe(outcome)
        self._forget()

    def close(self) -> None:
        """Free the guesses."""
        super().close()
        self._forget()

    def _forget(self) -> None:
        self.states_: Tensor | None = None  # [heads, width]
        self.logits_: Tensor | None = None  # [heads, draft vocab]
        self.best_: tuple[IntArray, FloatArray] | None = None  # tokens and chances of each head, [heads, width] both

    def _propose(self, tree: Tree, frontier: Frontier, thought: "Tensor", rng: Rng) -> None:
        """The guesses of the head at each node's depth."""
        if self.logits_ is None:
            states = self.net.states(thought)
            self.states_, self.logits_ = states[:, 0], self.net.logits(states)[:, 0]
        assert self.states_ is not None
        depths = tree.depths[[node for node, _ in frontier]].tolist()
        tree.states.update((node, self.states_[depth]) for (node, _), depth in zip(frontier, depths, strict=True))
        if ranks_do(tree, self.draws, self.sampler_):
            tokens, chances = self._best(self.logits_, max(width for _, width in frontier))
            for (node, width), depth in zip(frontier, depths, strict=True):
                guesses, probs = tokens[depth, :width].tolist(), chances[depth, :width].tolist()
                tree.extend(node, guesses, probs, source=self.source)
            return
        self._speak(tree, frontier, self.logits_[depths], rng, self.sampler_, self.committed_)

    def _best(self, logits: "Tensor", wide: int) -> tuple[IntArray, FloatArray]:
        """Best tokens of every head and their chances, looked up once a round unless more are asked for later."""
        if self.best_ is None or self.best_[0].shape[1] < min(wide, len(self.tokens)):
            self.best_ = best(logits, wide, self.tokens)
        return self.best_
