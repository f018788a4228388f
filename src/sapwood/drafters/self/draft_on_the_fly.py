"""Self-drafting without the attention of layers that hardly turn the hidden state.

Draft on the Fly (arXiv 2410.01028): a layer whose output points where its input does matters
little, and its attention may be left out of the draft. The cosine similarity of the two is measured
on the text that is being written, so that the draft fits the text without any search. Attention is
skipped where the similarity exceeds a threshold, at most a share of the layers, the most similar
first, and never in the first and last layer. The paper measures around the attention alone; here
whole layers are measured, whose inputs a backend can watch. The set changes between rounds, by
emitted text, so the output keeps its distribution. A search by trials is `self-skip`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Backend, EngineContext, Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.self.self_base import SelfBase, made_cheaper
from sapwood.drafters.self.skip_search import spread

FOLLOW = 0.2  # rate at which the similarity of a layer follows the text


@dataclass
class SkippedAttention:
    """Similarity by layer and the set that follows from it, shared by all requests."""

    skip: tuple[int, ...]  # sublayers: 2 i is the attention of layer i
    alike: FloatArray | None = None  # mean cosine of each layer's input and output, [layers]
    rounds: int = 0


@dataclass
class DraftOnTheFly(SelfBase):
    """The target itself without attention where cosine similarity says it matters little."""

    similarity: float = 0.9  # of a layer's input and output, above which its attention is skipped
    share: float = 0.5  # of the layers between the first and the last, most that are skipped
    every: int = 8  # rounds between two looks at the hidden states

    paper: ClassVar[str] = "2410.01028"
    needs: ClassVar[frozenset[str]] = frozenset({"variants", "hidden"})
    reads_scores = True

    def __post_init__(self) -> None:
        between(-1, 1, similarity=self.similarity)
        between(0, 1, share=self.share)
        at_least(1, every=self.every)

    def variant(self, target: Backend) -> Backend:
        """The target without the attention of every other layer, until text was seen."""
        self.target = target
        self.layers = target.capabilities.layers
        inner = range(1, self.layers - 1)
        self.most = round(self.share * len(inner))
        skipped = spread(inner, self.most) if self.most else ()
        self.record = SkippedAttention(tuple(2 * layer for layer in skipped))
        return made_cheaper(target, skip=self.record.skip)

    def bind(self, setting: EngineContext) -> None:
        """Make the variant, and watch the input of every layer."""
        super().bind(setting)
        self.watched = list(range(self.layers + 1))
        setting.target.watch(self.watched)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the target without these sublayers."""
        if self.inner_.scratch_ is None:
            self.inner_.backend = self.inner.backend
        super().expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Measure the layers on the accepted path now and then, and change the set."""
        super().observe(outcome)
        looks = self.record.rounds % self.every == 0
        self.record.rounds += 1
        if looks and outcome.asked:
            self._measure(outcome)

    def _measure(self, outcome: Outcome) -> None:
        rows = list(outcome.verdict.path)
        states: Any = outcome.scores.hidden(rows, self.watched)
        found = similarities(states.float().cpu().numpy(), len(self.watched))
        record = self.record
        record.alike = found if record.alike is None else follow(record.alike, found)
        chosen = least_needed(record.alike, self.similarity, self.most)
        skip = tuple(2 * layer for layer in chosen)
        if skip != record.skip:
            record.skip = skip
            self.inner.backend = made_cheaper(self.target, skip=skip)


def follow(old: FloatArray, new: FloatArray) -> FloatArray:
    """A running mean of similarities."""
    return old + FOLLOW * (new - old)


def similarities(states: FloatArray, count: int) -> FloatArray:
    """Mean cosine of consecutive states, [count - 1], of states [rows, count * width]."""
    rows = states.reshape(len(states), count, -1).astype(np.float64)
    sizes = np.maximum(np.linalg.norm(rows, axis=2), 1e-12)
    products = (rows[:, :-1] * rows[:, 1:]).sum(axis=2)
    found: FloatArray = (products / (sizes[:, :-1] * sizes[:, 1:])).mean(axis=0)
    return found


def least_needed(alike: FloatArray, least: float, most: int) -> list[int]:
    """Layers above this similarity, at most so many, the most similar; not the first or last."""
    inner = [layer for layer in range(1, len(alike) - 1) if alike[layer] > least]
    return sorted(sorted(inner, key=lambda layer: -alike[layer])[:most])
