"""Throughput statistics of one recipe: tokens, seconds, the price of drafting, and rests.

A round is counted once, however many requests shared its pass. It is compared with the same round
without its trees: the pass over fewer rows, no drafting, one token per request. So one request and
many are computed alike, and a recipe that shares its passes with others is charged for its own
trees alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sapwood.core.part import Part
from sapwood.core.types import Outcome, SharedPass
from sapwood.engine.cost_model import CostModel

FADE = 0.95  # weight that a round's tokens and seconds keep after the next one
SELDOM = 16  # how much further apart fruitless probes may move
BRIEF = 3  # how much shorter a try is after one that failed
LOSS = 0.5  # tokens by which a request may fall behind plain decoding before a try ends early
MOST_LOST = 0.25  # tokens that one round may count as lost: some of the first ones compile
GAINED = 1.5  # tokens of earlier gains that a try may lose again, besides these
SOON = 3  # rounds before which it does not
ENTRY = 4  # steps in which requests that rested join; longer than those that follow
# verified trees of the steps that follow before a try may end, unless it has lost much; and least
# and most of these steps
TRY = 128
TRY_STEPS = 4, 24
SHORT_PAUSE = 64  # longest rest after a try that ended early
RECENT = 10  # rounds in the mean draft seconds of a node
MISHAP = 4.0  # a stage over this multiple of its predicted seconds compiled or was interrupted
REPAID = 0.5  # share of the slack that tries may use up; a loss beyond it lengthens the rest
EASED = 2  # factor by which trees must become fewer for a rest to end early
REGRET = 0.005  # share of all time that tries of trees may lose where requests share a pass
MOST_ROUNDS = 1 << 14  # of a rest after such a try
# tokens of all requests that tries may lose beyond that before the next rest: the more requests,
# the less likely it is that trees pay
MOST_DEBT = 8.0
MOST_STEPS = 6.0  # seconds that a try may lose before it has shown that it gains, in such steps
CREDIT = 16.0  # tokens that earlier gains allow them to lose


@dataclass(frozen=True, slots=True)
class RoundShare:
    """One request's share of a round."""

    tokens: int
    nodes: int  # of the tree, its root not counted
    expanded: int  # nodes that a drafter was asked about
    draft: float  # seconds; 0 in the first round, which includes prefill
    one_call: bool = False  # the tree came in one call, which may wait for another machine

    @classmethod
    def of(cls, outcome: Outcome, *, first: bool) -> "RoundShare":
        """The share of a request, from its outcome."""
        rests = first or not outcome.asked
        expanded = 0 if rests else int(np.count_nonzero(outcome.grown.expanded))
        if outcome.grown.one_call:  # the call takes the time, not the node
            expanded = min(expanded, 1)
        return cls(
            len(outcome.tokens),
            len(outcome.tree) - 1,
            expanded,
            0.0 if first else outcome.times.draft,
            outcome.grown.one_call,
        )


@dataclass
class StepTimes:
    """Seconds of whole steps with drafts beyond those of steps in a rest, for shared passes.

    Predictions cover passes and drafts. The host's work on trees shows in whole steps alone, as
    does a device that runs ahead in a rest. A step is compared with the predicted seconds of a pass
    over its roots, times what steps of a rest have taken of theirs: so neither a longer text nor a
    machine that is busy just now counts. In the first steps after a rest drafters read the text
    that was emitted meanwhile: they cost more than later steps, and tell nothing about those.
    """

    # powers of two of requests -> predicted seconds of passes over roots, and seconds of such
    # steps, faded
    plain: dict[int, tuple[float, float]] = field(default_factory=dict)
    seen: Counter[int] = field(default_factory=Counter)  # steps outside a rest, by the same
    debt: float = 0.0  # seconds that these have lost, less REGRET of all seconds
    tried: int = 0  # steps since the last rest
    recent: float = 0.0  # seconds lost in steps of this try, faded

    def add(
        self, requests: int, tokens: int, roots: float, seconds: float, *, drafted: bool
    ) -> None:
        """Count a step; `roots` are the predicted seconds of a pass over its roots.

        The first steps outside a rest compile and are left out.
        """
        band = requests.bit_length()
        usual = self.usual(requests, roots)
        if usual:
            # at the beginning of a try each request may take as long as a step
            most = requests if drafted and self.tried < ENTRY else 1
            seconds = min(seconds, MISHAP * most * usual * max(tokens / requests, 1.0))
        if not drafted:
            before, spent = self.plain.get(band, (0.0, 0.0))
            self.plain[band] = FADE * before + roots, FADE * spent + seconds
            self.tried = 0
            self.recent = 0.0
        else:
            self.seen[band] += 1
            self.tried += 1
            if self.seen[band] > SOON:
                loss = seconds - tokens / requests * usual
                self.debt += loss
                if self.tried > ENTRY:
                    self.recent = FADE * self.recent + loss
        self.debt = max(self.debt - REGRET * seconds, -CREDIT * usual / requests)

    def usual(self, requests: int, roots: float) -> float:
        """Seconds of a step in a rest; 0 while they are unknown."""
        predicted, seconds = self.plain.get(requests.bit_length(), (0.0, 0.0))
        return roots * seconds / predicted if predicted else 0.0

    def rest_rounds(self, requests: int, roots: float) -> int:
        """Rounds of a rest after which drafts have lost no more than REGRET of all time.

        None while the steps of this try gain, as they repay what its beginning has lost, and none
        before it has shown whether they do, unless it has lost MOST_STEPS by then.
        """
        step = self.usual(requests, roots)
        if not step or self.debt <= MOST_DEBT * step / requests:
            return 0
        enough = self.tried >= ENTRY + try_steps(requests)
        if self.recent <= 0 or not (enough or self.recent > MOST_STEPS * step):
            return 0
        return min(int(self.debt / (REGRET * step)) + 1, MOST_ROUNDS)


def try_steps(requests: int) -> int:
    """Steps of so many requests that show whether trees gain."""
    least, most = TRY_STEPS
    return min(max(TRY // requests, least), most)


@dataclass
class ThroughputStats:
    """Tokens and seconds of a recipe's rounds, shared by all requests."""

    slack: float  # share by which speculation must fall behind before it rests; 1: it never does
    patience: int  # speculating rounds between two decisions
    first_pause: int  # rounds of the first rest
    longest: int  # longest rest
    probe: int  # rounds without a tree after which one is sent unpriced
    tokens: float = 0.0  # emitted, faded
    seconds: float = 0.0  # spent, faded
    plain: float = 0.0  # what plain decoding would have spent on the same tokens, faded
    expansion: float = 0.0  # draft seconds of one expanded node, running average
    drafts: int = 0  # rounds in that average
    lost: float = 0.0  # tokens that a request is behind plain decoding, faded
    rounds: int = 0  # speculating rounds since the last decision
    rest: int = 0  # plain rounds still to go
    pause: int = 0  # length of the next rest
    failed: bool = False  # the last try ended in a rest
    idle: int = 0  # rounds since a tree was last sent
    wait: int = 0  # of these, before one is sent unpriced
    probing: bool = False  # one request of this round sends it
    trees: int = 1  # of the last pass
    rest_trees: int = 1  # trees of the pass after which the present rest began
    # tokens lost in each round since the last decision
    losses: list[float] = field(default_factory=list)
    entries: list[RoundShare] = field(default_factory=list)  # of the round that is not settled yet
    rested: bool = False  # the last round was one of a rest
    step_times: StepTimes = field(default_factory=StepTimes)  # of shared passes

    def __post_init__(self) -> None:
        self.pause = self.first_pause
        self.wait = self.probe

    @property
    def rate(self) -> float:
        """Recent tokens per second; 0 before the first round."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def set_load(self, trees: int, each: float) -> None:
        """Set the number of trees in the pass; `each` is plain decoding's seconds per token there.

        The speedup over plain decoding carries over to another load; tokens per second do not.
        """
        if trees != self.trees:
            self.tokens = self.plain / each
            self.trees = trees
        if self.rest and trees * EASED <= self.rest_trees:  # rows have become cheaper since
            self.rest = 0
            self.pause = self.first_pause
            self.failed = False

    def forget(self) -> None:
        """Forget throughput and losses, which were computed with another cost curve."""
        self.tokens = self.seconds = self.plain = self.lost = 0.0

    def begin_text(self) -> None:
        """Begin another text, in which gains of the one before say little."""
        self.lost = max(self.lost, 0.0)

    def probes(self) -> bool:
        """True for one request of a round that is due to send an unpriced tree."""
        due = self.idle >= self.wait and not self.probing
        self.probing |= due
        return due

    def settle(
        self, shared: SharedPass, cost: CostModel, tokens: int = 0, draft: float = 0.0
    ) -> None:
        """Count the round of all entries; `tokens` and `draft` are those of others in its pass."""
        entries = self.entries
        self.entries = []
        if not entries:
            return
        nodes = sum(entry.nodes for entry in entries)
        if self.rest > 0:
            self.settle_rest(nodes)
            return
        self._sent(nodes)
        self.rested = False
        spent = self._drafted(
            sum(entry.expanded for entry in entries), sum(entry.draft for entry in entries)
        )
        every = shared.rows + shared.prefill
        share = cost.seconds(every - nodes, shared.context, shared.trees) / cost.seconds(
            every, shared.context, shared.trees
        )
        without = shared.seconds * share  # of the pass without these trees
        each = (without + draft) / (len(entries) + tokens)
        self.set_load(shared.trees, each)
        mine = sum(entry.tokens for entry in entries)
        self.tokens = FADE * self.tokens + mine
        self.seconds = FADE * self.seconds + len(entries) * each + spent + shared.seconds - without
        self.plain = FADE * self.plain + mine * each
        self.rounds += 1
        if each:
            spared = mine / len(entries)  # passes of plain decoding
            loss = (each + (spent + shared.seconds - without) / len(entries)) / each - spared
            self.lost = max(FADE * self.lost + min(loss, MOST_LOST), -GAINED)
            if any(entry.one_call for entry in entries):
                self.losses.append(loss)
        most = LOSS / BRIEF if self.failed else LOSS
        # where requests share a pass, each pauses for itself
        if self.slack < 1 and shared.trees == 1 and self.rounds >= SOON and self.lost > most:
            # little was lost, so a text that changes is soon tried again
            longest = max(min(SHORT_PAUSE, self.longest), self.first_pause)
            self._rest(min(self.pause, longest))
            self.pause = max(self.pause, min(2 * self.pause, longest))
        elif self.rounds >= (self.patience // BRIEF if self.failed else self.patience):
            self._decide()

    def settle_rest(self, nodes: int = 0) -> None:
        """Count a round of a rest; nodes may come from trees that were grown before it."""
        self._sent(nodes)
        self.rested = True
        self.rest -= 1

    def settle_round(self, requests: int, tokens: int, nodes: int, seconds: float) -> None:
        """Count a round that a device ran by itself, of requests that shared draft and pass.

        Whether it was worth its trees is decided by `settle_step`, from the seconds of whole steps.
        """
        if self.rest > 0:
            self.settle_rest(nodes)
            return
        self._sent(nodes)
        self.rested = False
        self.trees = requests
        self.tokens = FADE * self.tokens + tokens
        self.seconds = FADE * self.seconds + seconds
        self.plain = FADE * self.plain + seconds  # no gain is carried over to another load

    def settle_step(
        self, requests: int, tokens: int, nodes: int, roots: float, seconds: float
    ) -> None:
        """Count a whole step of requests that shared a pass; rest if drafts have lost too much.

        `roots` are the predicted seconds of a pass over the roots alone. A step whose drafts were
        not worth their price counts too: it has cost their seconds.
        """
        times = self.step_times
        drafts = not self.rested
        if self.rested and nodes:  # another recipe drafted
            return
        times.add(requests, tokens, roots, seconds, drafted=drafts)
        if self.rest or self.slack >= 1 or not drafts:
            return
        if not times.usual(requests, roots):  # time some steps without drafts first
            self._rest(self.first_pause)
        elif rounds := times.rest_rounds(requests, roots):
            self._rest(rounds)

    def _sent(self, nodes: int) -> None:
        """Count rounds without a tree, and space probes further apart after a fruitless one."""
        if nodes:
            self.wait = (
                min(2 * self.wait, SELDOM * self.probe) if self.idle >= self.wait else self.probe
            )
        self.idle = 0 if nodes else self.idle + 1
        self.probing = False

    def _drafted(self, expanded: int, seconds: float) -> float:
        """Update the seconds of an expansion; return the draft seconds without outliers."""
        if not expanded or not seconds:
            return seconds
        first = not self.drafts
        seconds = without_outlier(seconds, expanded * self.expansion)
        each = seconds / expanded
        # some of the first rounds load and compile: the quickest one counts
        if self.drafts < RECENT:
            self.expansion = min(self.expansion or each, each)
        else:
            self.expansion += (each - self.expansion) / RECENT
        self.drafts += 1
        return 0.0 if first else seconds

    def _decide(self) -> None:
        """Rest if the last rounds were slower than plain decoding; reset the pause if faster."""
        if self.plain < (1 - self.slack) * self.seconds:
            self._rest(self.pause)
            self.pause = min(2 * self.pause, self.longest)
            return
        self.rounds = 0
        self.losses.clear()
        if self.plain > self.seconds:
            self.pause = self.first_pause
            self.failed = False

    def rest_for(self, rounds: int) -> None:
        """Rest because no tree can pay at this load; nothing was tried."""
        failed = self.failed
        self._rest(rounds)
        self.failed = failed

    def _rest(self, rounds: int) -> None:
        """Decode so many rounds without trees, or more if the try was expensive."""
        self.rounds = 0
        self.rest = max(rounds, self._repays())
        self.losses.clear()
        self.forget()
        self.failed = True
        self.rest_trees = self.trees

    def _repays(self) -> int:
        """Rounds after which the losses of this try are within half of the slack.

        The usual loss counts, above what every try may lose. Only drafters that may wait for
        another machine lose that many tokens in a few rounds.
        """
        if not self.losses or not self.slack:
            return 0
        usual = float(np.median(self.losses))
        return int(len(self.losses) * max(usual - MOST_LOST, 0.0) / (REPAID * self.slack))


def alone(outcome: Outcome) -> SharedPass:
    """The pass of a batch of one."""
    return SharedPass(1, len(outcome.tree), 0, outcome.context, outcome.times.verify)


def refine(cost: CostModel, shared: SharedPass) -> SharedPass:
    """Refine the cost curve by a pass; return the pass without prefill rows and outliers."""
    trees = shared.trees
    context = shared.context
    seconds = shared.seconds
    if shared.prefill:  # prefill rows cost less than scored ones: the curve is not refined
        scored, every = (
            cost.seconds(rows, context, trees)
            for rows in (shared.rows, shared.rows + shared.prefill)
        )
        return replace(shared, prefill=0, seconds=without_outlier(seconds * scored / every, scored))
    predicted = cost.seconds(shared.rows, context, trees)
    cost.observe(shared.rows, context, seconds, trees)
    usual = without_outlier(seconds, predicted)
    return shared if usual == seconds else replace(shared, seconds=usual)


def without_outlier(seconds: float, predicted: float) -> float:
    """The seconds of a stage, or the predicted ones if it took far longer."""
    return predicted if 0 < MISHAP * predicted < seconds else seconds


class ThroughputController(Part):
    """Base of controllers that count tokens and seconds."""

    stats: ThroughputStats  # made when it is bound, shared by all requests


def stats_of(part: Part) -> Iterator[ThroughputStats]:
    """The statistics of a controller and of the controllers inside it."""
    if isinstance(part, ThroughputController):
        yield part.stats
    for inner in part.nested():
        yield from stats_of(inner)


def batch_rate(stats: Sequence[ThroughputStats]) -> float:
    """Tokens per second of all recipes that share a pass; 0 before the first round."""
    seconds = sum(one.seconds for one in stats)
    return sum(one.tokens for one in stats) / seconds if seconds else 0.0
