"""A chain without a length: each pass checks whatever was drafted during the one before.

AMUSD (arXiv 2410.17375): draft model and target run by themselves, on devices of their own. There
is no draft length. The target checks all that was drafted during its last pass, as soon as there is
something (`first` tokens); the draft model writes on, and steps back to the place where the target
disagreed. PEARL ends a draft at a length and may check its root alone after a mismatch; here the
length is what the pass had time for, up to the budget, and a pass never begins empty.

The engine that runs both at once is `engine/overlap.py`; where requests share passes, or where the
draft reads the target, this is a plain chain.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.policies.pearl import Pearl


@dataclass
class Amusd(Pearl):
    """A chain without a length: as long as the target's pass takes."""

    # tokens that a pass waits for when nothing is drafted, as the published verifier does
    first: int = 1

    paper: ClassVar[str] = "2410.17375"

    def __post_init__(self) -> None:
        at_least(1, first=self.first)
