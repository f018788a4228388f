"""Decides how long a draft of another machine may be waited for: at most for what it may gain.

A reply that comes after its round still shows two things at no cost: how long it took, and how far
the text then followed its tree. So calls are made without waiting until waiting is known to pay:
an accepted token saves a step of plain decoding, and a lost reply costs the whole wait. While it
does not pay, calls are made less and less often.
"""

from dataclasses import dataclass

FIRST_GAIN = 1.0  # tokens that a tree is taken to bring before one was seen
RECENT = 4  # trees in the running mean of the gain
TAKEN = 1 / 8  # rate of the share of a tree's right tokens that rounds take
FORGET = 1 / 16  # rate at which that share returns to 1 while no tree is waited for
SELDOM = 32  # most rounds between two calls


@dataclass
class WaitRule:
    """Gain of a tree and frequency of calls, shared by all requests of an engine."""

    gain: float = FIRST_GAIN  # tokens that a reply brings, running mean
    seen: int = 1  # trees in that mean, the first guess counted
    # share of a tree's right tokens that was accepted: a policy may prune it
    taken: float = 1.0
    spacing: int = 1  # rounds between two calls that are not waited for
    left: int = 0  # rounds until the next one

    def limit(self, step: float, trip: float, answered: float, deadline: float) -> float:
        """Seconds from a call to the end of the wait for its reply; 0 when a wait does not pay.

        `step` is a pass of plain decoding, `trip` the usual round trip, `answered` the share of
        calls with a reply, and `deadline` the time at which a reply counts as late.
        """
        worth = self.gain * step
        limit = min(deadline, worth)
        if trip > limit or answered * (worth - trip) <= (1 - answered) * limit:
            return 0.0
        return limit

    def due(self) -> bool:
        """True in a round in which a call is made although its reply is not waited for."""
        self.left -= 1
        if self.left > 0:
            return False
        self.left = self.spacing
        return True

    def followed(self, right: int, offered: int, accepted: int, *, useful: bool) -> None:
        """Count a tree of which the text followed `right` tokens.

        Rounds were offered some of these and accepted some of those. `useful`: its like is worth a
        call in every round.
        """
        if offered:
            self.taken += TAKEN * (min(accepted / offered, 1.0) - self.taken)
        else:
            self.taken += FORGET * (1.0 - self.taken)
        self.seen = min(self.seen + 1, RECENT)
        self.gain += (right * self.taken - self.gain) / self.seen
        self.space(useful=useful)

    def space(self, *, useful: bool) -> None:
        """Call in every round while that is useful, else half as often as before."""
        self.spacing = 1 if useful else min(2 * self.spacing, SELDOM)
        self.left = min(self.left, self.spacing)
