"""CaPE (arXiv 2402.02082): a chain with further candidates where the drafter is unsure.

The chain is drafted as usual. A position is verified with its first token alone where that one's
probability exceeds 0.8, with 3 tokens above 0.6, 5 above 0.3, and 7 below. The method is the
paper's; its ranges were recalled, not read.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.policies.swift import Swift


@dataclass
class Cape(Swift):
    """A chain of full length with more siblings where its token is unlikely."""

    stop: float = 0.0  # least probability of a token after which drafting goes on
    # children of a position by the probability of the first: above 0.8, 0.6, 0.3, and below;
    # of a shorter list the last number holds for the rest
    greedy: list[int] = field(default_factory=lambda: [1, 3, 5, 7])
    sampled: list[int] = field(default_factory=lambda: [1, 3, 5, 7])  # at a temperature

    paper: ClassVar[str] = "2402.02082"
    bounds: ClassVar[tuple[float, ...]] = (0.8, 0.6, 0.3)
