"""The small records that parts hand to each other, and the closed sets they declare."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.tree import Tree

if TYPE_CHECKING:
    from sapwood.protocols import Scores


class Draw(enum.Enum):
    """How a drafter chooses siblings: decides which verifiers may judge them."""

    TOPK = "topk"  # chosen, no randomness: best tokens, look-ups, any rerank
    IID = "iid"  # independent draws from q
    SWOR = "swor"  # draws from q without replacement, in order
    MIXED = "mixed"  # chosen children first, then draws without replacement from the rest


class Prune(enum.Enum):
    """What a policy cuts after the draft: decides which draws it may be used with."""

    NOTHING = "nothing"
    GROUPS = "groups"  # sibling groups, or the end of one, by what was known before that was drawn
    NODES = "nodes"  # single nodes, by their own token


class Guarantee(enum.Enum):
    """What a verifier promises about the output."""

    TEXT = "text"  # same seed, same text as plain decoding
    LAW = "law"  # same distribution as plain decoding
    LOSSY = "lossy"  # a declared departure


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend can do and where it runs."""

    name: str  # torch, toy, ...
    model: str
    vocab: int
    context: int  # most tokens a session may hold
    max_nodes: int = 1024  # most nodes of one tree, root included
    provides: frozenset[str] = frozenset()  # "hidden", "layers", "variants": what parts may need
    device: str = "cpu"
    dtype: str = "float64"
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Budget:
    """What a round may spend on its tree; the root is free."""

    nodes: int  # nodes sent to the target besides the root
    depth: int  # longest path
    width: int  # most children of one node
    price: FloatArray | None = None  # [nodes + 1] tokens that a tree of n nodes must bring to pay for its pass
    draft: float = 0.0  # tokens that expanding one more node must bring to pay for its drafting
    rate: float = 0.0  # tokens that a second must bring to be worth it; 0 where nobody counts seconds

    @property
    def floor(self) -> float:
        """Reach below which no node can pay, however cheap the stair it stands on."""
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


NO_NODES = Budget(nodes=0, depth=0, width=0)


def trust(source: int) -> None:
    """No corrections: a node's chance is its draft probability."""


class Counts(NamedTuple):
    """How often nodes like each were accepted once their parent was; see `Binned`."""

    edges: FloatArray  # of the bins of confidence
    hits: FloatArray  # [sets of drafters, confidence, rank, depth], as are the trials
    trials: FloatArray
    coarse: float  # trials that a draft probability is worth
    fine: float  # trials that all cells of a confidence together are worth


@dataclass(frozen=True, slots=True)
class Terms:
    """What a drafter goes by that grows a tree whole and looks at it meanwhile: it opens leaves while that pays."""

    budget: Budget
    stride: int  # leaves opened at a time, those of largest reach
    counts: Counts
    chance: float = 1.0  # of the best child that a leaf gets
    level: float = 0.0  # tokens that opening leaves must bring to pay for the time it takes
    least: float = 0.0  # reach that a leaf must exceed where nobody counts seconds


@dataclass(frozen=True, slots=True)
class Levels:
    """A tree by levels, for a drafter that grows it whole instead of being asked node by node."""

    nodes: int  # kept at the end, those of largest reach, besides the root
    depth: int  # longest path
    beam: int  # nodes expanded per level, those of largest reach
    width: int  # children of an expanded node
    lines: Callable[[int], FloatArray | None] = trust  # of a drafter's source; see `Binned.lines`, None is `raw`
    hope: float = math.inf  # tokens that such a tree brings, less those its drafting costs
    longest: int = 0  # longest path of a tree that needs no drafting, and is better if it brings more
    terms: Terms | None = None  # for a drafter that looks at the tree in hand, instead of nodes, depth and beam


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier decided: the accepted path and the token the target adds after it."""

    path: tuple[int, ...]  # accepted nodes, root first
    bonus: int

    @property
    def accepted(self) -> int:
        """Drafted tokens that stay."""
        return len(self.path) - 1

    def within(self, tokens: int, tree: Tree) -> "Verdict":
        """The same verdict on `tree`, of which no more than so many tokens are wanted, the bonus included."""
        if len(self.path) <= tokens:
            return self
        return Verdict(self.path[:tokens], int(tree.tokens[self.path[tokens]]))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a round by stage."""

    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.draft + self.verify + self.other


@dataclass(frozen=True, slots=True)
class Company:
    """Who shares the coming pass, as far as that is known before its trees are grown."""

    trees: int = 1  # requests with a tree, this one included
    rows: int = 0  # of all others: their roots, the nodes they sent last, prompts that are read
    rate: float = 0.0  # tokens per second of all of them lately; 0 where nobody knows


ALONE = Company()


@dataclass(frozen=True, slots=True)
class Joint:
    """A pass that checked the trees of several requests, or read prompts beside them."""

    trees: int  # requests whose trees were checked
    rows: int  # of all trees
    reading: int  # further rows, of prompts
    context: int  # mean of committed tokens that a row could see
    seconds: float  # of the whole pass


@dataclass(frozen=True)
class Outcome:
    """One finished round, as every part gets to observe it."""

    grown: Tree  # what the drafter proposed
    tree: Tree  # what the target checked
    verdict: Verdict
    scores: "Scores"
    context: int  # committed tokens before the round
    times: Times = field(default_factory=Times)
    asked: bool = True  # the budget had room for a tree; False while drafting rests
    joint: Joint | None = None  # the pass, where it was shared; then `times.verify` is that of the whole pass

    @property
    def rows(self) -> int:
        """Rows of the pass, of all who shared it."""
        return len(self.tree) if self.joint is None else self.joint.rows + self.joint.reading

    @property
    def trees(self) -> int:
        """Trees of the pass."""
        return 1 if self.joint is None else self.joint.trees

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens emitted by this round: the accepted path and the bonus."""
        return [*self.tree.tokens[list(self.verdict.path[1:])].tolist(), self.verdict.bonus]
