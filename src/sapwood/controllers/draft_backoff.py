"""Rounds in which one request of a shared pass does not draft, as its drafts did not pay.

Requests that share a pass differ: one copies its prompt, the next invents. Each one's drafts are
charged for their rows and their seconds, at the throughput of all; a request that falls behind
drafts nothing for some rounds, and for twice as many after the next fruitless try.
"""

FIRST = 4  # rounds of the first pause
LONGEST = 64  # of any
LOSS = 0.3  # tokens that a request may fall behind before it pauses
KEEP = 0.7  # weight that gains keep after the next round


class DraftBackoff:
    """Gains of one request's drafts, and the rounds in which it pauses."""

    def __init__(self) -> None:
        self.left = 0  # rounds of the present pause
        self.next = FIRST  # rounds of the next one
        self.gain = 0.0  # tokens, faded

    def pauses(self) -> bool:
        """True for a round of a pause."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def observe(self, gained: float) -> None:
        """Count a round with drafts; `gained` is accepted tokens less what drafts cost."""
        self.gain = KEEP * self.gain + gained
        if self.gain > 0:
            self.next = FIRST
        elif self.gain < -LOSS:
            self.left = self.next
            self.next = min(2 * self.next, LONGEST)
            self.gain = -LOSS / 2  # the next try is shorter
