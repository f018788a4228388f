"""Accept a token above a target probability that rises with the drafter's uncertainty (lossy).

The verification of CM-ASD (arXiv 2508.15371): floor = base + slope (1 - C), C being the drafter's
certainty from its entropy and margins. The paper calls it a tolerance; read so it would be loosest
where the drafter is least sure, the opposite of what it says, so it is a floor here. It also calls
the rule faithful: by BLEU, not in distribution. The paper gives no constants. The length rule that
belongs to it is `cm-asd`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import certainty_at
from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.verifiers.lenient import Belief, Lenient


@dataclass
class Threshold(Lenient):
    """LOSSY: accept a token whose p is above a floor set by the drafter's certainty."""

    base: float = 0.1  # floor where the drafter is certain
    slope: float = 0.3  # added to it at full uncertainty

    paper: ClassVar[str] = "2508.15371"

    def __post_init__(self) -> None:
        between(0, 1, base=self.base, slope=self.slope)

    def accepts_instead(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True when the target gives the token enough probability."""
        parent = int(tree.parents[child])
        floor = self.base + self.slope * (1.0 - certainty_at(tree, parent))
        return bool(belief(parent)[tree.tokens[child]] >= floor)
