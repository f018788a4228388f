"""A beam of drawn paths: each level is a sample without replacement of all texts of its length.

RSD-S (arXiv 2402.14160) is stochastic beam search: every path has its log probability plus Gumbel
noise, and the largest of a level stay. As a race: each path arrives at a time of its own, at a rate
of its probability, and the first arrivals stay. The order says nothing about the times between, so
the race can be run from the top without any clock. The nodes of the beam arrive in order, each
bringing its first child; a further child competes with the arrivals that are still to come, at the
rate of what its siblings leave of their parent's probability. So the next arrival is drawn from the
values of open places, where `dyspec` takes the largest; no place depends on the token drawn for it,
and drafts without replacement keep the target's distribution. A beam pruned by path probability
instead would not.

RSD-C, the same number of drawn children everywhere on a level, is `static` on drafts without
replacement. Chosen drafts, as at temperature 0, have no noise: the most likely paths of each level
stay.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.bandits import prompt_key
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Budget, Outcome, Prune
from sapwood.policies.open_slots import families, places

RACE = 7  # use of keyed noise, distinct from those of the request's own noise


@dataclass
class Rsd(Part):
    """A beam of paths drawn without replacement, level by level."""

    beam: int = 6  # paths that stay on each level, >= 1
    seed: int = 0

    paper: ClassVar[str] = "2402.14160"
    prunes: ClassVar[Prune] = Prune.GROUPS  # and the last siblings of one, by the tokens before

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam)

    def reset(self, request: RequestContext) -> None:
        """Key the noise by the prompt."""
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.position_ = len(request.prompt) - 1
        self.beams_: list[list[int]] = [[ROOT]]  # of each level so far, first arrivals first

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The beam of the deepest level."""
        beam, room = self.follow(tree, budget)
        if not room or tree.height >= budget.depth:
            return []
        return [(node, min(self.beam, budget.width)) for node in beam if not tree.expanded[node]]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The beams of all levels."""
        self.follow(tree, budget)
        tree.reach[:], tree.valued = places(tree)[1], len(tree)
        return tree.keep(node for beam in self.beams_ for node in beam)

    def follow(self, tree: Tree, budget: Budget) -> tuple[list[int], int]:
        """Select the beam of a new level; return the last beam and the remaining room in nodes."""
        if len(tree) == 1:
            self.beams_ = [[ROOT]]
        room = budget.nodes - sum(map(len, self.beams_[1:]))
        if tree.height == len(self.beams_):
            self.beams_.append(self.arrivals(tree, self.beams_[-1], min(self.beam, room)))
            room -= len(self.beams_[-1])
        return self.beams_[-1], room

    def arrivals(self, tree: Tree, beam: list[int], count: int) -> list[int]:
        """The first `count` children of a beam to arrive, in order."""
        (place, through), children = places(tree), families(tree)
        level = [child for node in beam for child in children[node]]
        if not tree.sampled[level].any():
            return sorted(level, key=lambda node: -through[node])[:count]
        found = list[int]()
        steps = 0
        # nodes that have not arrived, and the probability of all paths that have not
        coming = list(beam)
        outside = 1.0
        waiting: list[list[int]] = []  # of each node that has, the children that have not
        while len(found) < count and (coming or any(waiting)):
            rates = {line: place[rest[0]] for line, rest in enumerate(waiting) if rest}
            if coming:
                rates[len(waiting)] = outside
            line = self.draw(
                rates, NoiseKey(self.position_, RACE, tree.height * CAPACITY + steps, self.prompt_)
            )
            if line == len(waiting):  # a node arrives together with its first child
                waiting.append(list(children[coming[0]]))
                outside = max(outside - through[coming.pop(0)], 0.0)
            found += [waiting[line].pop(0)] if waiting[line] else []
            steps += 1
        return found

    def draw(self, rates: dict[int, float], place: NoiseKey) -> int:
        """The key of the next arrival, at these rates; the first if rounding left no mass."""
        lines = list(rates)
        probs = np.array(list(rates.values()))
        if len(lines) == 1 or not probs.any():
            return lines[0]
        return lines[self.rng_.pick(probs / probs.sum(), place)]

    def observe(self, outcome: Outcome) -> None:
        """Update the position in the text."""
        self.position_ = outcome.context + outcome.verdict.accepted + 1
