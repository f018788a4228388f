"""Prune the tree after the target's first layers, by an early head (ProPD, arXiv 2402.13485).

The tree is grown by another policy. Its size is set to the most expected tokens per second, by a
line fitted to the seconds of recent rounds against size. The nodes run through the first layers;
there an early head, fitted online, gives each parent's probs, and a child of too low a rank in them
is pruned with its descendants. The other layers run on the remaining nodes, from the states that
the first ones computed.

The paper prunes what is not among a fixed number of best tokens. A small model's early layers
predict too badly for that, so the number here is fitted: it keeps the share `recall` of recent
drafts that were right, pruned or not. Nothing is pruned before enough drafts were seen. As in the
paper, a path is worth the product of how often each rank of each head was right (`ranked`), and any
policy may grow the tree.

A node is pruned by the target's probs at its parent, so only chosen drafts, or verifiers that do
not read q, may be combined with it.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sapwood.common.drafter_store import home
from sapwood.common.early_head import EarlyHead, numbers
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import (
    EngineContext,
    Frontier,
    Policy,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Outcome, Prune
from sapwood.estimators.ranked import Ranked
from sapwood.policies.beam import Beam

SHARE = 6  # one in so many layers runs before the tree is pruned
RECORD = 256  # right drafts in the record of ranks
SURE = 16  # right drafts before that record is used
PROMPT = 512  # last tokens of a prompt that the head learns from
# the first rounds send 1/1, 1/2 and 1/4 of the tree, to measure the seconds of a node
TRIALS = (1, 2, 4)


@dataclass
class Propd(Part):
    """Prune, after the target's first layers, nodes that an early head finds unlikely."""

    policy: Policy = field(default_factory=lambda: Beam(estimator=Ranked()))  # grows the tree
    # the first layer that runs on the pruned tree; 0: after a sixth of the model
    layer: int = 0
    recall: float = 0.95  # share of right drafts that the early head must let pass, 0 to 1
    rate: float = 0.2  # how fast the seconds of a size follow a new round, 0 to 1
    # decay of a size's weight in the fit, per round without it, >= 0
    fade: float = 0.02

    paper: ClassVar[str] = "2402.13485"
    reads_scores = True
    prunes: ClassVar[Prune] = Prune.NODES
    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "layers"})
    now = staticmethod(time.perf_counter)  # seconds; replaced where runs must repeat exactly

    def __post_init__(self) -> None:
        self.reads_probs = self.policy.reads_probs
        between(0, 1, recall=self.recall, rate=self.rate, fade=self.fade)
        at_least(0, layer=self.layer)

    def bind(self, setting: EngineContext) -> None:
        """Split the target at the layer and load its early head; shared by all requests."""
        super().bind(setting)
        target, able = setting.target, setting.target.capabilities
        info, depth = target.info, able.layers
        assert able.layer_split is not None  # it provides layers
        self.split = able.layer_split
        self.cut = self.layer or max(1, depth // SHARE)
        self.split.check_layer(self.cut)
        self.watched = [self.cut, depth]
        target.watch(self.watched)
        path = home("propd", info.model) / f"{info.dtype}-{self.cut}.npz"
        self.head = EarlyHead(able.model.get_output_embeddings().weight.shape[1], path)
        # of right drafts in the early probs of their parents
        self.ranks: deque[int] = deque(maxlen=RECORD)
        self.line = RoundCostLine(self.rate, self.fade)

    def reset(self, request: RequestContext) -> None:
        """Learn from the prompt."""
        super().reset(request)
        self.session_ = request.session
        self.early_ = 0.0
        self.sent_ = 0
        read = request.session.prefill_output(PROMPT)
        if read is not None:
            self._learn(read, range(min(PROMPT, request.session.length)))

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The frontier of the policy that grows the tree."""
        return self.policy.frontier(tree, budget)

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The policy's tree, pruned to the best size and by the early head."""
        cut = self.policy.prune(tree, budget)
        size = self.line.size(np.sort(cut.reach[1:])[::-1])
        nodes = np.sort(np.append(ROOT, np.argsort(-cut.reach[1:], kind="stable")[:size] + 1))
        sized = tree.keep((nodes if cut.kept is None else cut.kept[nodes]).tolist())
        begun = self.now()
        most = self.most if len(sized) > 1 else None
        stay = range(len(sized)) if most is None else self._plausible(sized, most)
        self.early_ = self.now() - begun
        self.sent_ = len(sized) - 1
        assert sized.kept is not None
        return sized if len(stay) == len(sized) else tree.keep(sized.kept[list(stay)].tolist())

    @property
    def most(self) -> int | None:
        """Largest rank that a child may have in its parent's early probs; None while unknown."""
        if not self.head.fitted or len(self.ranks) < SURE:
            return None
        return int(np.quantile(self.ranks, self.recall, method="higher"))

    def _plausible(self, tree: Tree, most: int) -> Sequence[int]:
        """The nodes that have at most this rank in their parents' early probs, as all ancestors."""
        states = numbers(self.split.layer_input(TreeInput(self.session_, tree), self.cut))
        above = np.unique(tree.parents[1:])
        place = {int(node): row for row, node in enumerate(above)}
        output = self.split.logits_of(self.head.guess(states[above]))
        stay = [ROOT]
        for parent in above.tolist():
            children = tree.children(parent) if parent in stay else []
            ranks = ranks_of(output.logits(place[parent]), tree.tokens[children])
            stay += [child for child, rank in zip(children, ranks, strict=True) if rank <= most]
        return sorted(stay)

    def observe(self, outcome: Outcome) -> None:
        """Record seconds and ranks of right drafts, and fit the head to the path's states."""
        super().observe(outcome)
        if self.sent_:
            self.line.observe(self.sent_, self.early_ + outcome.times.verify)
        path = list(outcome.verdict.path)
        right = drafted(outcome)
        if self.head.fitted and right:
            early = numbers(outcome.scores.hidden(path[: len(right)], self.watched[:1]))
            output = self.split.logits_of(self.head.guess(early))
            for row, token in enumerate(right):
                self.ranks += ranks_of(output.logits(row), np.array([token]))
        self._learn(outcome.scores, path)

    def _learn(self, scores: TargetOutput, rows: Any) -> None:
        states = numbers(scores.hidden(list(rows), self.watched))
        self.head.learn(*np.split(states, 2, axis=1))

    def close(self) -> None:
        """Save the early head."""
        super().close()
        self.head.save()


def ranks_of(logits: FloatArray, tokens: IntArray) -> list[int]:
    """Rank of each of these tokens: the number of more likely tokens."""
    return [int((logits > logits[token]).sum()) for token in tokens.tolist()]


def drafted(outcome: Outcome) -> list[int]:
    """The emitted tokens that had been drafted.

    The bonus counts too if its node was grown and pruned; otherwise a wrong pruning would never be
    corrected.
    """
    last = outcome.verdict.path[-1]
    grown = last if outcome.tree.kept is None else int(outcome.tree.kept[last])
    missed = outcome.grown.child(grown, outcome.verdict.bonus) is not None
    return outcome.tokens if missed else outcome.tokens[:-1]


class RoundCostLine:
    """Linear fit of a round's seconds against the size of its tree, recent sizes weighted more."""

    def __init__(self, rate: float, fade: float) -> None:
        self.rate = rate
        self.fade = fade
        self.rounds = 0
        self.seen: dict[int, tuple[float, int]] = {}  # size -> seconds, the last round that had it

    def observe(self, size: int, seconds: float) -> None:
        """Add one round."""
        self.rounds += 1
        usual = self.seen.get(size, (seconds, 0))[0]
        self.seen[size] = usual + self.rate * (seconds - usual), self.rounds

    def fit(self) -> tuple[float, float]:
        """Seconds of an empty tree and of one more node, by least squares; the slope is >= 0."""
        sizes, seconds, last = (np.array(part, float) for part in zip(*self._points(), strict=True))
        weights = np.exp(-self.fade * (self.rounds - last))
        middle = np.average(sizes, weights=weights)
        mean = np.average(seconds, weights=weights)
        spread = np.average((sizes - middle) ** 2, weights=weights)
        slope = (
            np.average((sizes - middle) * (seconds - mean), weights=weights) / spread
            if spread > 0
            else 0.0
        )
        # an empty tree must not take negative time
        slope = min(max(float(slope), 0.0), float(mean / middle))
        return float(mean - slope * middle), slope

    def _points(self) -> list[tuple[float, float, float]]:
        return [(size, seconds, last) for size, (seconds, last) in self.seen.items()]

    def size(self, reach: FloatArray) -> int:
        """Number of nodes of most tokens per second, at least one; `reach` is best first."""
        if self.rounds < len(TRIALS):
            return -(-len(reach) // TRIALS[self.rounds])
        base, slope = self.fit()
        seconds = base + slope * np.arange(1, len(reach) + 1)
        rates = (1.0 + np.cumsum(reach)) / np.maximum(seconds, np.finfo(float).tiny)
        return int(np.argmax(rates)) + 1 if len(rates) else 0
