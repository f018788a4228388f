"""The target's law at each node of a tree, computed only where a verifier looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.arrays import FloatArray
from sapwood.drafters.draw import draft_law
from sapwood.protocols import Scores
from sapwood.records import Verdict
from sapwood.rng import Keyed, Place, Rng
from sapwood.sampling import Sampler
from sapwood.tree import Tree


@dataclass(frozen=True, slots=True)
class PathLaws:
    """Scores of a tree seen through the request's sampling, along each node's path."""

    tree: Tree
    scores: Scores
    sampler: Sampler

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.sampler.sampling.greedy

    def law(self, node: int) -> FloatArray:
        """Law of the next token after this node, [vocab]."""
        return self.sampler.law(self.scores.logits(node), self.tree.spell(node)[1:])

    def soft(self, node: int) -> FloatArray:
        """The same law; at temperature 0 the whole softmax of which the best token is taken."""
        return draft_law(self.sampler, self.scores.logits(node), self.tree.spell(node)[1:])

    def draw(self, node: int, position: int, rng: Rng) -> int:
        """The target's own next token, at this absolute position."""
        sampling = self.sampler.sampling
        if not sampling.greedy:
            return rng.pick(self.law(node), Place(position))
        if not sampling.touches_logits:
            return int(self.scores.argmax()[node])
        return self.sampler.best(self.scores.logits(node), self.tree.spell(node)[1:])

    def follow(self, position: int, rng: Rng) -> Verdict | None:
        """The walk along the target's own tokens where the scores can do it all; None where it goes token by token."""
        sampling, ask = self.sampler.sampling, getattr(self.scores, "follow", None)
        if ask is None or sampling.touches_logits or sampling.truncates:
            return None
        if sampling.greedy:
            found = ask(self.tree, 0.0, unkeyed)
        elif isinstance(rng, Keyed):
            found = ask(self.tree, sampling.temperature, lambda depth: rng.key(Place(position + depth + 1)))
        else:
            return None
        return None if found is None else Verdict(*found)

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states at these nodes on the device, [nodes, layers * width]."""
        return self.scores.hidden(nodes, layers)


def unkeyed(_: int) -> int:
    """The key of noise that nobody adds."""
    return 0
