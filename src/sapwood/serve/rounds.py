"""What the engine's thread tells of its rounds: one record a round, and how things stand."""

from dataclasses import dataclass

FADE = 0.95  # weight that a round keeps after the next one


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of the target and all that went with it."""

    number: int
    trees: int  # requests whose trees were checked
    nodes: int  # of these trees, roots not counted
    reading: int  # rows of prompts
    tokens: int  # emitted
    accepted: int  # of these, drafted
    seconds: float  # of the whole round
    draft: float  # of these, on drafting
    verify: float  # of these, on the pass
    plain: float  # seconds that the pass would have taken without any tree, by the cost curve
    rate: float  # tokens per second that further rows are priced by; 0 where nobody counts seconds
    resting: bool  # drafting was found not to pay, and waits
    running: int  # requests that are being answered, after the round
    waiting: int  # requests without memory
    used: int  # blocks of memory held by sessions
    cached: int  # blocks kept for texts that begin alike


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand."""

    running: int  # requests that are being answered
    reading: int  # requests whose prompt is being read
    waiting: int  # requests without memory
    used: int  # blocks of memory held by sessions
    cached: int  # blocks kept for texts that begin alike
    blocks: int | None  # in all; None where nothing limits them
    block: int  # tokens of a block
    rounds: int  # so far
    tokens: int  # emitted so far
    tokens_per_second: float  # lately
    nodes_per_pass: float  # lately, of all trees together
    trees_per_pass: float  # lately
    rate: float  # tokens per second that further rows are priced by
    resting: bool  # drafting was found not to pay, and waits
    preemptions: int  # requests that had to give their memory up so far
    draining: bool = False  # nothing new is taken


class Recent:
    """Faded sums over the last rounds."""

    def __init__(self) -> None:
        self.rounds = self.tokens = self.seconds = self.nodes = self.trees = 0.0

    def count(self, told: Round) -> None:
        """Take in a round."""
        for name, new in (
            ("rounds", 1.0),
            ("tokens", told.tokens),
            ("seconds", told.seconds),
            ("nodes", told.nodes),
            ("trees", told.trees),
        ):
            setattr(self, name, FADE * getattr(self, name) + new)

    @property
    def tokens_per_second(self) -> float:
        """Of the rounds themselves: pauses without work do not count."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def each(self, total: float) -> float:
        """A sum per round."""
        return total / self.rounds if self.rounds else 0.0
