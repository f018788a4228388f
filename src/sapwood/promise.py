"""How far promises were kept: what was expected of guesses, against what became of them."""

from dataclasses import dataclass

FADE = 0.97  # weight that a round keeps after the next one: some thirty rounds count
PRIOR = 3.0  # tokens that are taken as promised and kept before anything was seen


@dataclass
class Promise:
    """Expected and accepted tokens of one kind of guess, faded."""

    expected: float = 0.0
    accepted: float = 0.0

    @property
    def kept(self) -> float:
        """Accepted tokens for each that was expected; 1 where nothing is known."""
        return (self.accepted + PRIOR) / (self.expected + PRIOR)

    def take(self, expected: float, accepted: float) -> None:
        """Learn from a round that put such guesses to the question."""
        self.expected = FADE * self.expected + expected
        self.accepted = FADE * self.accepted + accepted

    def fade(self) -> None:
        """Learn that a round went by without one: what is long ago says little."""
        self.take(0.0, 0.0)
