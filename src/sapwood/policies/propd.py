"""Prune inside the target: after its first layers, drop what the target will hardly say (ProPD, arXiv 2402.13485).

The tree is grown by another policy. How much of it is sent is decided by a line fitted to the seconds of
rounds by size, recent ones first: the size of most expected tokens per second. Its nodes run through the
first layers; there a head that was fitted in seconds gives each parent's law, and a child too far down in
it is dropped with all below it. The other layers run on what is left, from where the first ones ended.

The paper drops what is not among a fixed number of best tokens. A small model's early layers know less than
that takes for granted, so the number here follows the record: it lets pass the share `recall` of drafts
that were right lately, dropped or not. While nothing is known, nothing is dropped.

A node is dropped by what the target makes of its parent, so only chosen drafts, or verifiers that read no
draft law, may go with it.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.estimators.binned import Binned
from sapwood.part import Part, at_least, between
from sapwood.policies.beam import Beam
from sapwood.policies.early_head import EarlyHead, numbers
from sapwood.protocols import Frontier, Policy, Request, Scores, Setting, Work
from sapwood.records import Budget, Outcome, Prune
from sapwood.trained import home
from sapwood.tree import ROOT, Tree

SHARE = 6  # one in so many layers runs before the tree is pruned
RECORD, SURE = 256, 16  # right drafts that are remembered, and how many say something
PROMPT = 512  # last tokens of a prompt that the head learns from
TRIALS = (1, 2, 4)  # the first rounds send the whole tree and these parts of it, to learn what a node takes


@dataclass
class Propd(Part):
    """Drop, after the target's first layers, what its early head finds unlikely; size by a fitted line."""

    policy: Policy = field(default_factory=lambda: Beam(estimator=Binned()))  # grows the tree
    layer: int = 0  # the first layer that runs on what is left; 0: a sixth of the model comes before
    recall: float = 0.95  # share of right drafts that the early head must let pass, 0 to 1
    rate: float = 0.2  # how fast the seconds of a size follow a new round, 0 to 1
    fade: float = 0.02  # how fast a size counts less in the fit when it is not seen, per round, >= 0

    paper: ClassVar[str] = "2402.13485"
    reads_scores = True
    prunes: ClassVar[Prune] = Prune.NODES
    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "layers"})
    now = staticmethod(time.perf_counter)  # seconds; replaced where runs must repeat exactly

    def __post_init__(self) -> None:
        self.reads_laws = self.policy.reads_laws
        between(0, 1, recall=self.recall, rate=self.rate, fade=self.fade)
        at_least(0, layer=self.layer)

    def bind(self, setting: Setting) -> None:
        """Cut the target in two and take up what is known about it; shared by all requests."""
        super().bind(setting)
        target: Any = setting.target
        info, depth = target.info, target.layers
        self.target, self.cut = target, self.layer or max(1, depth // SHARE)
        target.check_layer(self.cut)
        self.watched = [self.cut, depth]
        target.watch(self.watched)
        path = home("propd", info.model) / f"{info.dtype}-{self.cut}.npz"
        self.head = EarlyHead(target.model.get_output_embeddings().weight.shape[1], path)
        self.ranks: deque[int] = deque(maxlen=RECORD)  # of right drafts in the early law of their parents
        self.line = Line(self.rate, self.fade)

    def reset(self, request: Request) -> None:
        """Learn from the prompt."""
        super().reset(request)
        self.session_, self.early_, self.sent_ = request.session, 0.0, 0
        read = request.session.reading(PROMPT)
        if read is not None:
            self._learn(read, range(min(PROMPT, request.session.length)))

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """As the policy that grows."""
        return self.policy.frontier(tree, budget)

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """What the policy keeps, cut to the best size, less what the target's first layers make unlikely."""
        cut = self.policy.prune(tree, budget)
        size = self.line.size(np.sort(cut.reach[1:])[::-1])
        nodes = np.sort(np.append(ROOT, np.argsort(-cut.reach[1:], kind="stable")[:size] + 1))
        sized = tree.keep((nodes if cut.kept is None else cut.kept[nodes]).tolist())
        begun = self.now()
        most = self.most if len(sized) > 1 else None
        stay = range(len(sized)) if most is None else self._plausible(sized, most)
        self.early_, self.sent_ = self.now() - begun, len(sized) - 1
        assert sized.kept is not None
        return sized if len(stay) == len(sized) else tree.keep(sized.kept[list(stay)].tolist())

    @property
    def most(self) -> int | None:
        """How far down in its parent's early law a child may be; None while too little is known."""
        if not self.head.fitted or len(self.ranks) < SURE:
            return None
        return int(np.quantile(self.ranks, self.recall, method="higher"))

    def _plausible(self, tree: Tree, most: int) -> Sequence[int]:
        """The nodes of at most this rank in their parents' early law, and whose ancestors are."""
        states = numbers(self.target.enter(Work(self.session_, tree), self.cut))
        above = np.unique(tree.parents[1:])
        place = {int(node): row for row, node in enumerate(above)}
        laws = self.target.speak(self.head.guess(states[above]))
        stay = [ROOT]
        for parent in above.tolist():
            children = tree.children(parent) if parent in stay else []
            ranks = ranks_of(laws.logits(place[parent]), tree.tokens[children])
            stay += [child for child, rank in zip(children, ranks, strict=True) if rank <= most]
        return sorted(stay)

    def observe(self, outcome: Outcome) -> None:
        """Book the seconds and the ranks of what was right, and learn from the states of the path."""
        super().observe(outcome)
        if self.sent_:
            self.line.observe(self.sent_, self.early_ + outcome.times.verify)
        path, right = list(outcome.verdict.path), drafted(outcome)
        if self.head.fitted and right:
            early = numbers(outcome.scores.hidden(path[: len(right)], self.watched[:1]))
            laws = self.target.speak(self.head.guess(early))
            for row, token in enumerate(right):
                self.ranks += ranks_of(laws.logits(row), np.array([token]))
        self._learn(outcome.scores, path)

    def _learn(self, scores: Scores, rows: Any) -> None:
        states = numbers(scores.hidden(list(rows), self.watched))
        self.head.learn(*np.split(states, 2, axis=1))

    def close(self) -> None:
        """Keep what was learned."""
        super().close()
        self.head.save()


def ranks_of(logits: FloatArray, tokens: IntArray) -> list[int]:
    """How many tokens are more likely than each of these."""
    return [int((logits > logits[token]).sum()) for token in tokens.tolist()]


def drafted(outcome: Outcome) -> list[int]:
    """The emitted tokens that had been drafted; the last one too where its node was dropped, or dropping would last."""
    last = outcome.verdict.path[-1]
    grown = last if outcome.tree.kept is None else int(outcome.tree.kept[last])
    missed = outcome.grown.child(grown, outcome.verdict.bonus) is not None
    return outcome.tokens if missed else outcome.tokens[:-1]


class Line:
    """Seconds of a round by the size of its tree, as a straight line through what was seen, recent sizes first."""

    def __init__(self, rate: float, fade: float) -> None:
        self.rate, self.fade = rate, fade
        self.rounds = 0
        self.seen: dict[int, tuple[float, int]] = {}  # size -> seconds, the last round that had it

    def observe(self, size: int, seconds: float) -> None:
        """Take in one round."""
        self.rounds += 1
        usual = self.seen.get(size, (seconds, 0))[0]
        self.seen[size] = usual + self.rate * (seconds - usual), self.rounds

    def fit(self) -> tuple[float, float]:
        """Seconds of no nodes and of one more, by least squares; a line that falls is taken as flat."""
        sizes, seconds, last = (np.array(part, float) for part in zip(*self._points(), strict=True))
        weights = np.exp(-self.fade * (self.rounds - last))
        middle, mean = np.average(sizes, weights=weights), np.average(seconds, weights=weights)
        spread = np.average((sizes - middle) ** 2, weights=weights)
        slope = np.average((sizes - middle) * (seconds - mean), weights=weights) / spread if spread > 0 else 0.0
        slope = min(max(float(slope), 0.0), float(mean / middle))  # no nodes take no less than no time
        return float(mean - slope * middle), slope

    def _points(self) -> list[tuple[float, float, float]]:
        return [(size, seconds, last) for size, (seconds, last) in self.seen.items()]

    def size(self, reach: FloatArray) -> int:
        """How many of the best nodes bring most tokens per second, at least one; reach is theirs, best first."""
        if self.rounds < len(TRIALS):
            return -(-len(reach) // TRIALS[self.rounds])
        base, slope = self.fit()
        seconds = base + slope * np.arange(1, len(reach) + 1)
        rates = (1.0 + np.cumsum(reach)) / np.maximum(seconds, np.finfo(float).tiny)
        return int(np.argmax(rates)) + 1 if len(rates) else 0
