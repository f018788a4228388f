"""Stop after a token from a law as uncertain as those whose tokens were refused.

The stop rule of AdaSD (arXiv 2512.11280): drafting ends with the first token whose law has more entropy than
the refused tokens' laws had on average. The paper's mean never forgets and is undefined before the first
refusal; here old refusals fade, and until one was seen nothing stops. Its lossy verifier is `adasd`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.doubt import Mean, entropy_at
from sapwood.part import between
from sapwood.policies.doubt import Stopping
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.tree import Tree


@dataclass
class AdaSdStop(Stopping):
    """A chain that ends with the first law of more entropy than refused tokens had on average."""

    fade: float = 0.95  # weight that a refusal keeps after the next one; 1 forgets nothing

    paper: ClassVar[str] = "2512.11280"
    reads_laws = True

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)

    def reset(self, request: Request) -> None:
        """Begin without refusals."""
        self.refused_ = Mean(self.fade)

    def ends(self, tree: Tree, child: int) -> bool:
        """True where the law this token came from is more uncertain than refused ones were."""
        limit = self.refused_.value
        return limit is not None and entropy_at(tree, int(tree.parents[child])) > limit

    def observe(self, outcome: Outcome) -> None:
        """Book the entropy where a token was refused."""
        last = outcome.verdict.path[-1]
        if outcome.tree.children(last):
            self.refused_.add(entropy_at(outcome.tree, last))
