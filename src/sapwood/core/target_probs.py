"""The target's probs at each node of a tree, computed on demand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetOutput, TargetProbs
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.sampling import Sampler, draft_probs
from sapwood.core.tree import Tree
from sapwood.core.types import Verdict


@dataclass(frozen=True, slots=True)
class PathProbs(TargetProbs):
    """Probs of a scored tree after the request's sampling, along each node's path."""

    tree: Tree
    scores: TargetOutput
    sampler: Sampler

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.sampler.sampling.greedy

    def probs(self, node: int) -> FloatArray:
        """Distribution of the next token after this node, [vocab]."""
        return self.sampler.probs(self.scores.logits(node), self.tree.spell(node)[1:])

    def soft(self, node: int) -> FloatArray:
        """The same as `probs`, but at temperature 0 the whole softmax instead of one-hot."""
        return draft_probs(self.sampler, self.scores.logits(node), self.tree.spell(node)[1:])

    def draw(self, node: int, position: int, rng: Rng) -> int:
        """The target's own next token, at this absolute position."""
        sampling = self.sampler.sampling
        if not sampling.greedy:
            return rng.pick(self.probs(node), NoiseKey(position))
        if not sampling.touches_logits:
            return int(self.scores.argmax()[node])
        return self.sampler.best(self.scores.logits(node), self.tree.spell(node)[1:])

    def launch_follow(self, position: int, rng: Rng) -> bool:
        """Launch the walk on the tree's device; True when the next draft can start from it."""
        draw = self._keyed_draw(position, rng)
        return draw is not None and self.scores.launch_follow(self.tree, *draw)

    def follow(self, position: int, rng: Rng) -> Verdict | None:
        """The walk along the target's own tokens in one call; None when it goes token by token."""
        draw = self._keyed_draw(position, rng)
        found = None if draw is None else self.scores.follow(self.tree, *draw)
        return None if found is None else Verdict(*found)

    def _keyed_draw(self, position: int, rng: Rng) -> tuple[float, Callable[[int], int]] | None:
        """Temperature and noise keys of the walk; None when raw logits are not enough for it."""
        sampling = self.sampler.sampling
        if sampling.touches_logits or sampling.truncates:
            return None
        if sampling.greedy:
            return 0.0, unkeyed
        if not isinstance(rng, KeyedRng):
            return None
        return sampling.temperature, lambda depth: rng.key(NoiseKey(position + depth + 1))

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states at these nodes on the device, [nodes, layers * width]."""
        return self.scores.hidden(nodes, layers)


def unkeyed(_: int) -> int:
    """The noise key at temperature 0, where no noise is added."""
    return 0
