"""The books of one recipe: tokens and seconds of its rounds, the price of drafting, and when to rest.

A round is booked once, however many requests shared its pass. What a recipe is held against is the same round
without its trees: the pass over fewer rows, no drafting, one token per request. So one request and many are
the same sum, and a recipe that shares its passes with others answers for its own trees alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sapwood.cost import CostCurve
from sapwood.part import Part
from sapwood.records import Joint, Outcome

FADE = 0.95  # weight that a round's tokens and seconds keep after the next one
SELDOM = 16  # how much further apart fruitless probes may move
BRIEF = 3  # how much shorter a try is after one that failed
RECENT = 10  # rounds that the draft seconds of a node look back
MISHAP = 4.0  # a stage that takes more than so many times what was foreseen compiled something, or was interrupted
EASED = 2  # trees must become so many times fewer for a rest to end early


@dataclass(frozen=True, slots=True)
class Entry:
    """What one request had of a round."""

    tokens: int
    nodes: int  # of the tree, its root not counted
    expanded: int  # nodes that a drafter was asked about
    draft: float  # seconds; 0 in the first round, which has read the prompt: that is spent anyway

    @classmethod
    def of(cls, outcome: Outcome, *, first: bool) -> "Entry":
        """What to book of an outcome."""
        expanded = 0 if first else int(np.count_nonzero(outcome.grown.expanded))
        return cls(len(outcome.tokens), len(outcome.tree) - 1, expanded, 0.0 if first else outcome.times.draft)


@dataclass
class Ledger:
    """What a controller that counts seconds remembers from request to request."""

    slack: float  # share by which speculation must fall behind plain decoding before it rests
    patience: int  # speculating rounds between two decisions
    first_pause: int  # rounds of the first rest
    longest: int  # longest rest
    probe: int  # rounds without a tree after which one is sent unpriced
    tokens: float = 0.0  # emitted, faded
    seconds: float = 0.0  # spent, faded
    plain: float = 0.0  # what plain decoding would have spent on the same tokens, faded
    expansion: float = 0.0  # draft seconds of one expanded node, running average
    drafts: int = 0  # rounds in that average
    rounds: int = 0  # speculating rounds since the last decision
    rest: int = 0  # plain rounds still to go
    pause: int = 0  # length of the next rest
    failed: bool = False  # the last try ended in a rest
    idle: int = 0  # rounds since a tree was last sent
    wait: int = 0  # of these, before one is sent unpriced
    probing: bool = False  # one request of this round has been told to
    trees: int = 1  # of the last pass
    crowd: int = 1  # trees of the pass after which the present rest began
    entries: list[Entry] = field(default_factory=list)  # of the round that is not settled yet

    def __post_init__(self) -> None:
        self.pause, self.wait = self.first_pause, self.probe

    # -------------------------------------------------------------------------------- before a round
    @property
    def rate(self) -> float:
        """Tokens per second lately; 0 where none were booked."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def meet(self, trees: int, each: float) -> None:
        """Take in that so many trees share the pass, `each` being plain decoding's seconds per token there.

        How many times as fast as plain decoding rounds are carries over to another load; tokens per second do not.
        """
        if trees != self.trees:
            self.tokens, self.trees = self.plain / each, trees
        if self.rest and trees * EASED <= self.crowd:  # rows have become cheaper since
            self.rest, self.pause, self.failed = 0, self.first_pause, False

    def probes(self) -> bool:
        """True for one request of a round that is due to send a tree whatever it costs."""
        due = self.idle >= self.wait and not self.probing
        self.probing |= due
        return due

    # --------------------------------------------------------------------------------- after a round
    def settle(self, joint: Joint, cost: CostCurve, tokens: int = 0, draft: float = 0.0) -> None:
        """Book the round of all entries; `tokens` and `draft` seconds are those of others who shared its pass."""
        entries, self.entries = self.entries, []
        if not entries:
            return
        nodes = sum(entry.nodes for entry in entries)
        self._sent(nodes)
        if self.rest > 0:
            self.rest -= 1
            return
        spent = self._drafted(sum(entry.expanded for entry in entries), sum(entry.draft for entry in entries))
        every = joint.rows + joint.reading
        share = cost.seconds(every - nodes, joint.context, joint.trees) / cost.seconds(
            every, joint.context, joint.trees
        )
        without = joint.seconds * share  # of the pass, had we sent no trees
        each = (without + draft) / (len(entries) + tokens)
        self.meet(joint.trees, each)
        mine = sum(entry.tokens for entry in entries)
        self.tokens = FADE * self.tokens + mine
        self.seconds = FADE * self.seconds + len(entries) * each + spent + joint.seconds - without
        self.plain = FADE * self.plain + mine * each
        self.rounds += 1
        if self.rounds >= (self.patience // BRIEF if self.failed else self.patience):
            self._decide()

    def _sent(self, nodes: int) -> None:
        """Count rounds without a tree, and have probes wait longer after one that taught nothing."""
        if nodes:
            self.wait = min(2 * self.wait, SELDOM * self.probe) if self.idle >= self.wait else self.probe
        self.idle = 0 if nodes else self.idle + 1
        self.probing = False

    def _drafted(self, expanded: int, seconds: float) -> float:
        """Take in what expanding so many nodes took; the seconds to book, without what a mishap added."""
        if not expanded or not seconds:
            return seconds
        first, seconds = not self.drafts, unspoiled(seconds, expanded * self.expansion)
        each = seconds / expanded
        if self.drafts < RECENT:  # some of the first rounds load and compile: the quickest shows what drafting takes
            self.expansion = min(self.expansion or each, each)
        else:
            self.expansion += (each - self.expansion) / RECENT
        self.drafts += 1
        return 0.0 if first else seconds

    def _decide(self) -> None:
        """Rest when the last stretch was slower than plain decoding; forgive when it was faster."""
        self.rounds = 0
        if self.plain < (1 - self.slack) * self.seconds:
            self.rest, self.pause = self.pause, min(2 * self.pause, self.longest)
            self.tokens = self.seconds = self.plain = 0.0
            self.failed, self.crowd = True, self.trees
        elif self.plain > self.seconds:
            self.pause, self.failed = self.first_pause, False


def alone(outcome: Outcome) -> Joint:
    """The pass of a request that shared it with nobody."""
    return Joint(1, len(outcome.tree), 0, outcome.context, outcome.times.verify)


def refine(cost: CostCurve, joint: Joint) -> Joint:
    """Refine the cost curve by a pass, and leave out of the pass what reading took and what a mishap added."""
    trees, context, seconds = joint.trees, joint.context, joint.seconds
    if joint.reading:  # rows that are read and not scored say little about the others
        scored, every = (cost.seconds(rows, context, trees) for rows in (joint.rows, joint.rows + joint.reading))
        return replace(joint, reading=0, seconds=unspoiled(seconds * scored / every, scored))
    foreseen = cost.seconds(joint.rows, context, trees)
    cost.observe(joint.rows, context, seconds, trees)
    usual = unspoiled(seconds, foreseen)
    return joint if usual == seconds else replace(joint, seconds=usual)


def unspoiled(seconds: float, foreseen: float) -> float:
    """The seconds of a stage, or those foreseen where a mishap says nothing about it."""
    return foreseen if 0 < MISHAP * foreseen < seconds else seconds


def ledgers(part: Part) -> Iterator[Ledger]:
    """The books of a controller and of the controllers inside it."""
    found = getattr(part, "ledger", None)
    if isinstance(found, Ledger):
        yield found
    for inner in part.nested():
        yield from ledgers(inner)


def joint_rate(books: Sequence[Ledger]) -> float:
    """Tokens per second of all who share a pass, each by its own books; 0 where none were booked."""
    seconds = sum(book.seconds for book in books)
    return sum(book.tokens for book in books) / seconds if seconds else 0.0
