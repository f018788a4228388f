"""CaPE (arXiv 2402.02082): a chain with further candidates where the drafter is unsure.

The chain is drafted as usual. A position is verified with 2 tokens where the first one's
probability exceeds 0.8, with 4 above 0.6, 6 above 0.3, and 8 below: the first token, and one,
three, five or seven more. These are the numbers of the published script.
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
    greedy: list[int] = field(default_factory=lambda: [2, 4, 6, 8])
    sampled: list[int] = field(default_factory=lambda: [2, 4, 6, 8])  # at a temperature

    paper: ClassVar[str] = "2402.02082"
    bounds: ClassVar[tuple[float, ...]] = (0.8, 0.6, 0.3)
