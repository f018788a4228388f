"""Causal path search (DiffuSpec, arXiv 2510.02358): one path through the candidates of each place.

A drafter that fills several places at once gives each place a distribution of its own, which does
not know the tokens beside it. The search reads the candidates from left to right by a small beam
and scores a path by both: the drafter's log-probabilities, and those of n-grams, which know the
order of tokens. Candidates of a place are the fewest best tokens that have the share `mass` of its
probability. A path ends with the end of the text. Only the best path is checked.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Outcome, Prune

TINY = 1e-12  # a draft probability of zero has a logarithm too
HALF = 0.5  # weight of each shorter n-gram against the next longer one


@dataclass
class CausalPath(Part):
    """Search the candidates of all places for the path of the best draft and n-gram score."""

    beam: int = 3  # paths followed at a time, >= 1
    most: int = 5  # candidates of a place, >= 1
    mass: float = 0.8  # probability that the candidates of a place share
    share: float = 0.5  # weight of the drafter's log-probability; the rest is the n-grams'
    order: int = 3  # tokens of the longest n-gram, >= 1

    paper: ClassVar[str] = "2510.02358"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam, most=self.most, order=self.order)
        between(0, 1, mass=self.mass, share=self.share)

    def reset(self, request: RequestContext) -> None:
        """Count the n-grams of the prompt."""
        self.ends_ = frozenset(request.sampler.sampling.stop_ids)
        self.counts_ = NgramProxy(self.order)
        self.counts_.add(request.prompt)

    def observe(self, outcome: Outcome) -> None:
        """Count the n-grams of the emitted tokens."""
        self.counts_.add(outcome.tokens)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best paths to the deepest level that have not ended."""
        if tree.height >= budget.depth:
            return []
        scores = self._scores(tree)
        level = [node for node in tree.level(tree.height) if node in scores]
        level = [
            node
            for node in level
            if not tree.expanded[node]
            and (node == ROOT or int(tree.tokens[node]) not in self.ends_)
        ]
        best = sorted(level, key=lambda node: -scores[node])[: self.beam]
        return [(node, min(self.most, budget.width)) for node in best]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best path of those that ended or are the longest that the budget allows."""
        longest = min(tree.height, budget.nodes, budget.depth)
        scores = self._scores(tree)
        done = [
            node
            for node in scores
            if tree.depths[node] == longest
            or (tree.depths[node] < longest and int(tree.tokens[node]) in self.ends_)
        ]
        ends = [node for node in done if node != ROOT] or [ROOT]
        # the mean of a token: paths that ended are shorter
        best = max(ends, key=lambda node: scores[node] / max(1, int(tree.depths[node])))
        return tree.keep(tree.path(best))

    def _scores(self, tree: Tree) -> dict[int, float]:
        """Score of the path to each node that is a candidate, as are its ancestors."""
        scores = {ROOT: 0.0}
        before: dict[int, float] = {}  # probability of the siblings so far, by parent
        for node in range(1, len(tree)):
            parent = int(tree.parents[node])
            taken = before.get(parent, 0.0)
            before[parent] = taken + float(tree.probs[node])
            if parent not in scores or taken >= self.mass:
                continue
            draft = math.log(max(float(tree.probs[node]), TINY))
            proxy = self.counts_.log_prob(tree.spell(node))
            scores[node] = scores[parent] + self.share * draft + (1 - self.share) * proxy
        return scores


class NgramProxy:
    """N-gram counts of a text; shorter n-grams fill in where longer ones were not seen."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.tail: list[int] = []  # last tokens of the text
        self.counts: Counter[tuple[int, ...]] = Counter()
        self.total = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Count the n-grams that end in these tokens, which follow those before."""
        for token in tokens:
            self.tail = [*self.tail, token][-self.order :]
            self.total += 1
            for length in range(1, len(self.tail) + 1):
                self.counts[tuple(self.tail[-length:])] += 1

    def log_prob(self, path: list[int]) -> float:
        """Log-probability of the last token of a path that begins with the root, given the text."""
        text = [*self.tail[:-1], *path]  # the root is the last counted token
        prob = 1.0 / (1.0 + self.total)
        for length in range(1, self.order + 1):
            gram = tuple(text[-length:])
            above = self.counts[gram[:-1]] if length > 1 else self.total
            if len(gram) < length or not above:
                break
            prob = HALF * prob + (1 - HALF) * self.counts[gram] / above
        return math.log(prob)
