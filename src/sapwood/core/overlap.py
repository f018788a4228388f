"""Protocol of policies that let the drafter run beside the target's pass, and which way pays.

While the target scores one tree, the drafter grows the next part of it, as if the tree were
accepted. The tree that both work on is the lookahead: the nodes that were sent to the target are
part of it, and what lies behind the emitted text becomes the next tree.
"""

import enum
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sapwood.core.tree import Tree
from sapwood.core.types import Budget

if TYPE_CHECKING:
    from typing import TypeGuard

TRIAL = 6  # rounds of a way when it is tried
HOLD = 48  # rounds that the best way is kept before the others are tried again
LONGEST = 768  # most such rounds; each trial that changes nothing doubles them
FADE = 0.9  # weight that a round keeps after the next one of its way
MISHAP = 4.0  # a round of this multiple of its way's mean seconds was interrupted


class DraftWay(enum.Enum):
    """Ways for drafting and verification to share the time of a round."""

    BESIDE = "beside"  # the drafter runs while the target does
    BEFORE = "before"  # first the draft, then the pass
    NONE = "none"  # no draft


@dataclass
class WayRecord:
    """Tokens and seconds of one way's rounds, faded."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second; 0 before the first round."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class OverlapGauge:
    """Tokens per second of each way, measured in turn; the best one is kept for a while."""

    records: dict[DraftWay, WayRecord] = field(
        default_factory=lambda: {way: WayRecord() for way in DraftWay}
    )
    way: DraftWay = DraftWay.BESIDE
    left: int = TRIAL  # rounds until the next decision
    fresh: bool = True  # the next round is the first of its way, which pays for the change
    untried: list[DraftWay] = field(default_factory=lambda: [DraftWay.BEFORE, DraftWay.NONE])
    kept: DraftWay | None = None  # the best way of the last decision
    hold: int = HOLD

    def add(self, tokens: int, seconds: float) -> None:
        """Count a round of the present way, and change the way when it is time."""
        record = self.records[self.way]
        mean = record.seconds / record.tokens if record.tokens else 0.0
        if self.fresh:
            self.fresh = False
        elif not mean or seconds < MISHAP * mean * max(tokens, 1):
            record.tokens = FADE * record.tokens + tokens
            record.seconds = FADE * record.seconds + seconds
        self.left -= 1
        if self.left <= 0:
            self._decide()

    def _decide(self) -> None:
        """Try the next way, or keep the best one; then try the others again."""
        if self.untried:
            self._go(self.untried.pop(0), TRIAL)
            return
        best = max(DraftWay, key=lambda way: self.records[way].speed)
        self.hold = min(2 * self.hold, LONGEST) if best is self.kept else HOLD
        self.kept = best
        self._go(best, self.hold)
        self.untried = [way for way in DraftWay if way is not best]

    def _go(self, way: DraftWay, rounds: int) -> None:
        self.fresh = way is not self.way
        self.way = way
        self.left = rounds


class DraftStream(Protocol):
    """A second stream of a device: what a thread launches on it runs beside the first one."""

    def release(self) -> None:
        """Called on the first stream: what was launched there so far comes before the draft."""

    def running(self) -> AbstractContextManager[None]:
        """Called in the drafting thread: launch on the second stream, behind what was released."""

    def join(self) -> None:
        """Called on the first stream: what is launched there from now on comes after the draft."""


@runtime_checkable
class AheadPolicy(Protocol):
    """A policy whose drafter may run beside the target's pass."""

    gauge: OverlapGauge  # made when it is bound, shared by all requests
    first: int  # levels drafted before a pass that would otherwise check nothing

    def sent(self, tree: Tree, budget: Budget) -> list[int]:
        """Nodes of the lookahead that the next pass checks: a path below the root, in order."""

    def ahead(self, tree: Tree, tip: int, depth: int) -> list[tuple[int, int]]:
        """Nodes to expand next, with their widths, below the last sent node and above a depth."""


def drafts_beside(policy: object) -> "TypeGuard[AheadPolicy]":
    """True for a policy whose drafter may run beside the target's pass."""
    return isinstance(policy, AheadPolicy)
