"""Protocols of decoding over a pipeline: stages of the target, and policies that keep them busy.

The target's layers are cut into stages. A run is a few nodes of one growing tree on their way
through the stages; one run behind another, each is one stage further after every tick. The tree
that a run belongs to is committed when the target's own token is no longer in it: until then it is
the window.
"""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sapwood.core.overlap import OverlapGauge
from sapwood.core.protocols import Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget


@dataclass
class Window:
    """The tree that grows while its runs are in the stages, with what is known of it so far."""

    tree: Tree  # as drafted
    budget: Budget
    misses: int = 0  # windows before this one, in a row, that ended with a token not in them
    sent: list[int] = field(default_factory=lambda: [ROOT])  # nodes that were given to runs
    tip: int = ROOT  # the last node whose token is the target's own
    ticks: int = 0  # since the tip moved or the window began
    left_first: list[int] = field(default_factory=list)  # nodes that left the first stage last

    def alive(self, node: int) -> bool:
        """True when the node lies below the tip, or is the tip."""
        while node > self.tip:
            node = int(self.tree.parents[node])
        return node == self.tip

    @property
    def room(self) -> int:
        """Nodes that may still be sent."""
        return self.budget.nodes - len(self.sent) + 1


@runtime_checkable
class PipelinePolicy(Protocol):
    """A policy that sends nodes into the stages of a pipeline, tick by tick."""

    gauge: OverlapGauge  # made when it is bound, shared by all requests
    stages: int

    def grow(self, window: Window, start: int) -> Frontier:
        """Nodes to expand next in this tick, whose own nodes begin at `start`; empty to end it."""

    def choose(self, window: Window, start: int) -> list[int]:
        """Nodes of this tick, from `start` on, that are sent, parents before their children."""


@runtime_checkable
class ExitDrafter(Protocol):
    """A drafter that reads the states that leave the first stage, in `Tree.states`."""

    exit_layer: int  # the layer before which the first stage ends
