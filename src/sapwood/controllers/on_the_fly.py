"""The depth of most expected tokens per second, from recent acceptance and the price of drafting.

On-the-fly adaptation of speculative decoding (Liu, Park, Shen, ACL 2025): with a chance a that a
drafted token is accepted and a price c of drafting it, in target passes, a window of g tokens
brings (1 + a + ... + a^g) / (1 + c g) tokens per pass of time; the whole numbers are few, so all
are tried. The chance is accepted / tested over the last rounds: accepted / drafted, as often
written, is far too low, since what follows a rejection is never tested. The price is the median of
what was measured. A new window must be expected to bring a little more than the present one.
"""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.types import Budget, Outcome


@dataclass
class AcceptanceHistory:
    """Acceptance and prices of recent rounds, shared by all requests."""

    depth: int  # the present window
    tested: deque[tuple[int, int]]  # (accepted, rejected) of recent rounds
    prices: deque[float]  # seconds of one drafted token / seconds of the pass, of recent rounds


@dataclass
class OnTheFly(Part):
    """Depth of most tokens per second by the formula for chains, from recent rounds."""

    window: int = 32  # rounds it looks back
    slack: float = 0.02  # share by which another depth must be better
    start: int = 5  # depth before anything was measured
    most: int = 20  # deepest
    nodes: int = 60
    width: int = 1

    paper: ClassVar[str] = "ACL 2025, long.482"

    def __post_init__(self) -> None:
        at_least(
            1,
            window=self.window,
            start=self.start,
            most=self.most,
            nodes=self.nodes,
            width=self.width,
        )
        between(0, 1, slack=self.slack)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty history, shared by all requests."""
        self.memory = AcceptanceHistory(
            min(self.start, self.most), deque(maxlen=self.window), deque(maxlen=self.window)
        )

    def reset(self, request: RequestContext) -> None:
        """Skip the first round's price: its drafting includes prefill."""
        self.begun_ = False

    def budget(self) -> Budget:
        """The present window."""
        return Budget(self.nodes, self.memory.depth, self.width)

    def observe(self, outcome: Outcome) -> None:
        """Record the round and choose the window again."""
        memory, times = self.memory, outcome.times
        expanded = int(outcome.grown.expanded.sum())
        if self.begun_ and expanded and times.verify > 0:
            memory.prices.append(times.draft / expanded / times.verify)
        self.begun_ = True
        if len(outcome.tree) > 1:
            refused = bool(outcome.tree.children(outcome.verdict.path[-1]))
            memory.tested.append((outcome.verdict.accepted, int(refused)))
        if memory.prices and memory.tested:
            memory.depth = self.choose(memory)

    def choose(self, memory: AcceptanceHistory) -> int:
        """The depth of most tokens per second, if it beats the present one clearly."""
        accepted, refused = np.sum(memory.tested, axis=0).tolist()
        depths = np.arange(self.most + 1)
        tokens = np.cumsum((accepted / (accepted + refused)) ** depths)
        pace = tokens / (1.0 + float(np.median(memory.prices)) * depths)
        best = 1 + int(np.argmax(pace[1:]))
        return best if pace[best] > (1.0 + self.slack) * pace[memory.depth] else memory.depth
