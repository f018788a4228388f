"""A depth just above the running average of accepted tokens, with probing.

The rule of exllamav3's dynamic drafting: rise fast, fall slowly, stop drafting below a floor, and
try again every so many rounds. A round accepted to its last level is censored: more might have been
accepted, so it counts one more.
"""

import math
from dataclasses import dataclass

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import RequestContext
from sapwood.core.types import NO_NODES, Budget, Outcome


@dataclass
class Ema(Part):
    """Depth follows the average of accepted tokens, rounded up plus one; off below a floor."""

    rise: float = 0.5  # weight of a round above the average
    fall: float = 0.2  # weight of a round below it
    floor: float = 0.25  # average below which drafting stops
    probe: int = 16  # rounds without drafting before one more try
    most: int = 20
    nodes: int = 60
    width: int = 4

    def __post_init__(self) -> None:
        between(0, 1, rise=self.rise, fall=self.fall)
        between(0, 100, floor=self.floor)
        at_least(1, probe=self.probe, most=self.most, nodes=self.nodes, width=self.width)

    def reset(self, request: RequestContext) -> None:
        """Begin with an average of two."""
        self.average_ = 2.0
        self.idle_ = 0

    def budget(self) -> Budget:
        """A depth just above the average, or no nodes."""
        if self.average_ < self.floor and self.idle_ < self.probe:
            return NO_NODES
        return Budget(self.nodes, min(math.ceil(self.average_) + 1, self.most), self.width)

    def observe(self, outcome: Outcome) -> None:
        """Move the average toward what was accepted."""
        if len(outcome.tree) == 1:
            self.idle_ += 1
            return
        accepted = outcome.verdict.accepted
        seen = accepted + (accepted == outcome.tree.height)
        self.average_ += (self.rise if seen > self.average_ else self.fall) * (seen - self.average_)
        self.idle_ = 0
