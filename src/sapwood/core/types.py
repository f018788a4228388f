"""Records and enums that parts exchange."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sapwood.common.fingerprint import Fingerprint
from sapwood.core.array_types import BoolArray, FloatArray
from sapwood.core.tree import Tree

if TYPE_CHECKING:
    from sapwood.core.lookahead import LookaheadRows
    from sapwood.core.protocols import TargetOutput


RATIO_DECAY = 0.97  # weight that a round keeps after the next one: some thirty rounds count
RATIO_PRIOR = 3.0  # tokens counted as predicted and accepted before any were


class Draw(enum.Enum):
    """Kind of draws by which a drafter chooses siblings; decides which verifiers may be used."""

    TOPK = "topk"  # chosen, no randomness: best tokens, look-ups, any rerank
    IID = "iid"  # independent draws from q
    SWOR = "swor"  # draws from q without replacement, in order
    MIXED = "mixed"  # chosen children first, then draws without replacement from the rest


class Prune(enum.Enum):
    """Kind of pruning that a policy does; decides with which draws it may be used."""

    NOTHING = "nothing"
    GROUPS = "groups"  # sibling groups, or the end of one, by what was known before that was drawn
    NODES = "nodes"  # single nodes, by their own token


class Guarantee(enum.Enum):
    """Guarantee of a verifier about the output."""

    TEXT = "text"  # same seed, same text as plain decoding
    LAW = "law"  # same distribution as plain decoding
    LOSSY = "lossy"  # a declared departure


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """Description of a backend: model, sizes, features and device."""

    name: str  # torch, toy, ...
    model: str
    vocab: int
    context: int  # most tokens a session may hold
    max_nodes: int = 1024  # most nodes of one tree, root included
    # "hidden", "layers", "variants", "mtp": what parts may need
    provides: frozenset[str] = frozenset()
    device: str = "cpu"
    dtype: str = "float64"
    threads: int = 1
    # of the model's weights, by which trained parts are found; None if they have none
    weights: Fingerprint | None = field(default=None, compare=False, repr=False)
    why: str = field(default="", compare=False, repr=False)  # it runs in a slower dtype than int8
    note: str = field(default="", compare=False, repr=False)  # shown beside the dtype


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits and prices of a round's tree; the root is free."""

    nodes: int  # nodes sent to the target besides the root
    depth: int  # longest path
    width: int  # most children of one node
    # [nodes + 1] tokens that a tree of n nodes must bring to pay for its pass
    price: FloatArray | None = None
    draft: float = 0.0  # tokens that expanding one more node must bring to pay for its drafting
    rate: float = 0.0  # tokens that a second must bring to pay off; 0 when time has no price

    @property
    def floor(self) -> float:
        """Reach below which no node can pay, at any size of the tree."""
        if self.price is None or len(self.price) < 2:
            return 0.0
        return float(np.min(self.price[1:] / np.arange(1, len(self.price))))

    def within(self, nodes: int, depth: int) -> "Budget":
        """The same budget with these caps; a cap of zero is plain decoding."""
        nodes, depth = min(self.nodes, nodes), min(self.depth, depth)
        if min(nodes, depth, self.width) <= 0:
            return NO_NODES
        if (nodes, depth) == (self.nodes, self.depth):
            return self
        return replace(self, nodes=nodes, depth=depth)


ALWAYS = 1 << 30  # rounds of a rest that never ends
NO_NODES = Budget(nodes=0, depth=0, width=0)


def trust(source: int) -> None:
    """No corrections: a node's chance is its draft probability."""


class AcceptanceCounts(NamedTuple):
    """Counts of accepted nodes given an accepted parent, by kind of node; see `Binned`."""

    edges: FloatArray  # of the bins of confidence
    hits: FloatArray  # [sets of drafters, confidence, rank, depth], as are the trials
    trials: FloatArray
    coarse: float  # weight of the draft probability, in trials
    fine: float  # weight of all cells of a confidence together, in trials


class AcceptanceTable(NamedTuple):
    """Table of an estimator, for compiled or device code that values nodes itself."""

    # of a drafter's source: chance = a + b * confidence, [confidence * rank * depth, 2]; None is
    # the draft probability itself
    lines: Callable[[int], FloatArray | None]
    counts: AcceptanceCounts | None = None  # behind the chances; None when there are none


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """Stopping rule of whole-tree growth: leaves are expanded while that pays."""

    budget: Budget
    stride: int  # leaves expanded at a time, those of largest reach
    counts: AcceptanceCounts
    chance: float = 1.0  # of the best child that a leaf gets
    level: float = 0.0  # tokens that expanding leaves must bring to pay for its time
    least: float = 0.0  # reach that a leaf must exceed when time has no price


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Shape of a tree by levels, for a drafter that grows whole trees."""

    nodes: int  # kept at the end, those of largest reach, besides the root
    depth: int  # longest path
    beam: int  # nodes expanded per level, those of largest reach
    width: int  # children of an expanded node
    # of a drafter's source; see `Binned.lines`, None is `raw`
    lines: Callable[[int], FloatArray | None] = trust
    hope: float = math.inf  # expected tokens of such a tree, less the price of its drafting
    # longest path of a looked-up tree, which is taken instead if it is expected to bring more
    longest: int = 0
    # for a drafter that values the tree as it grows, instead of nodes, depth and beam
    terms: GrowthRule | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's result: the accepted path and the token that the target adds after it."""

    path: tuple[int, ...]  # accepted nodes, root first
    bonus: int

    @property
    def accepted(self) -> int:
        """Number of accepted drafted tokens."""
        return len(self.path) - 1

    def within(self, tokens: int, tree: Tree) -> "Verdict":
        """The same verdict on `tree`, limited to so many tokens, the bonus included."""
        if len(self.path) <= tokens:
            return self
        return Verdict(self.path[:tokens], int(tree.tokens[self.path[tokens]]))


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a round by stage."""

    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.draft + self.verify + self.other


class StageClock:
    """Measures the seconds of a round by stage; every moment belongs to one stage."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.last = now()
        self.stages = {"draft": 0.0, "verify": 0.0, "other": 0.0}

    def restart(self) -> float:
        """Count the time since the last lap under no stage; returns its seconds."""
        last = self.last
        self.last = self.now()
        return self.last - last

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage, besides those of its laps."""
        self.stages[stage] += seconds

    def lap(self, stage: str) -> None:
        """Count the time since the last lap under this stage."""
        now = self.now()
        self.stages[stage] += now - self.last
        self.last = now

    def book(self, stage: str, seconds: float) -> None:
        """Count these seconds under this stage instead of the time since the last lap."""
        self.stages[stage] += seconds
        self.last = self.now()

    def shift(self, giver: str, taker: str, seconds: float) -> None:
        """Move seconds from one stage to another, at most those that the stage has."""
        seconds = min(seconds, self.stages[giver])
        self.stages[giver] -= seconds
        self.stages[taker] += seconds

    def split(self) -> StageTimes:
        """Seconds by stage since the last split."""
        times = StageTimes(**self.stages)
        self.stages = dict.fromkeys(self.stages, 0.0)
        return times


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """Expected load of the coming pass, before its trees are grown."""

    trees: int = 1  # requests with a tree, this one included
    rows: int = 0  # of all others: roots, nodes of their last trees, prompts in prefill
    rate: float = 0.0  # recent tokens per second of all of them; 0 when unknown
    alike: bool = False  # this request plans the trees of all, which have one shape


ALONE = BatchLoad()


@dataclass(frozen=True, slots=True)
class SharedPass:
    """A pass that scored trees of several requests, or prefilled prompts beside them."""

    trees: int  # requests whose trees were scored
    rows: int  # of all trees
    prefill: int  # further rows, of prompts
    context: int  # mean of committed tokens that a row could see
    seconds: float  # of the whole pass


@dataclass(frozen=True)
class Outcome:
    """One finished round, as parts observe it."""

    grown: Tree  # as drafted
    tree: Tree  # as pruned and verified
    verdict: Verdict
    scores: "TargetOutput"
    context: int  # committed tokens before the round
    times: StageTimes = field(default_factory=StageTimes)
    asked: bool = True  # the budget had nodes; False while drafting is paused
    # set when the pass was shared; then `times.verify` is that of the whole pass
    shared: SharedPass | None = None
    discarded: int = 0  # nodes drafted beside the pass that the emitted text left behind
    passes: int = 1  # of the target; more where several runs of a pipeline made up the round
    lookahead: "LookaheadRows | None" = None  # rows behind the nodes of the verified tree

    @property
    def rows(self) -> int:
        """Rows of the pass, of all its requests."""
        if self.shared is not None:
            return self.shared.rows + self.shared.prefill
        return len(self.tree) + (0 if self.lookahead is None else len(self.lookahead))

    @property
    def trees(self) -> int:
        """Trees of the pass."""
        return 1 if self.shared is None else self.shared.trees

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens emitted by this round: the accepted path and the bonus."""
        path = self.verdict.path
        if len(path) == 1:
            return [self.verdict.bonus]
        return [*self.tree.tokens[list(path[1:])].tolist(), self.verdict.bonus]

    def verified_nodes(self) -> tuple[BoolArray, BoolArray]:
        """For each grown node: its token was the target's; its parent was accepted."""
        grown = self.grown
        verdict = self.verdict
        kept = self.tree.kept
        path = np.array(verdict.path) if kept is None else kept[list(verdict.path)]
        hit = np.zeros(len(grown), bool)
        hit[path] = True
        tried = hit[grown.parents]
        tried[0] = False  # the root was not drafted
        hit |= (grown.parents == path[-1]) & (grown.tokens == verdict.bonus)
        return hit, tried


@dataclass
class AcceptanceRatio:
    """Decayed ratio of accepted to predicted tokens."""

    expected: float = 0.0
    accepted: float = 0.0

    @property
    def ratio(self) -> float:
        """Accepted tokens per predicted token; 1 before anything was counted."""
        return (self.accepted + RATIO_PRIOR) / (self.expected + RATIO_PRIOR)

    def add(self, expected: float, accepted: float) -> None:
        """Count a round in which such tokens were verified."""
        self.expected = RATIO_DECAY * self.expected + expected
        self.accepted = RATIO_DECAY * self.accepted + accepted

    def fade(self) -> None:
        """Count a round without any, so that old rounds lose weight."""
        self.add(0.0, 0.0)
