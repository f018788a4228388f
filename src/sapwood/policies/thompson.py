"""Draft a chain as long as chances drawn from the record of acceptance say so.

The control of EESD (arXiv 2406.03853): each depth keeps a Beta posterior of "a token drafted here is
accepted"; before a further token its chance is drawn from the posterior, and drafting goes on with
that chance, or while it exceeds a cutoff. Refusals are counted only where a token was put to the test,
old rounds fade, and a depth that is seldom reached leans on the record of all depths. The draws are
noise of the place (prompt, position, depth) under the part's own seed; they see no token that is still
to be drawn, so drafts of every kind keep the target's law.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.learners import CHANCES, beta_law, prompt_key
from sapwood.part import at_least, between
from sapwood.policies.chain import Chain
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Budget, Outcome
from sapwood.rng import Keyed, Place, Rng
from sapwood.tree import Tree

DEEPEST = 64  # depths with a posterior of their own; those below share the last
CHANCE, COIN = 3, 4  # uses of a place, beside those of the request's own noise


@dataclass
class Thompson(Chain):
    """A chain that goes on with a chance drawn from the record of acceptance at its depth."""

    cutoff: float = 0.0  # go on while the drawn chance exceeds this; 0: go on with that chance
    yes: float = 4.0  # acceptances and
    no: float = 1.0  # refusals to begin with; their sum is what the record of all depths is worth at each
    fade: float = 0.99  # weight that a round keeps after the next one
    most: int = 20  # longest chain
    seed: int = 0

    paper: ClassVar[str] = "2406.03853"

    def __post_init__(self) -> None:
        between(0, 1, cutoff=self.cutoff, fade=self.fade)
        between(1e-3, 1e6, yes=self.yes, no=self.no)
        at_least(1, most=self.most)

    def bind(self, setting: Setting) -> None:
        """Begin with empty counts, [depth, yes or no], shared by all requests."""
        self.counts = np.zeros((DEEPEST, 2))

    def reset(self, request: Request) -> None:
        """Key the noise by the prompt."""
        self.rng_: Rng = Keyed(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.position_ = len(request.prompt) - 1

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain; the first token is always drafted."""
        found, depth = super().frontier(tree, budget), tree.height
        if not found or depth >= self.most:
            return []
        return found if depth == 0 or self.goes_on(depth) else []

    def goes_on(self, depth: int) -> bool:
        """Whether a chain of this depth gets one more token."""
        law = self.posterior(min(depth, DEEPEST - 1))
        theta = float(CHANCES[self.rng_.pick(law, Place(self.position_, CHANCE, depth, self.prompt_))])
        if self.cutoff:
            return theta > self.cutoff
        return self.rng_.flip(theta, Place(self.position_, COIN, depth, self.prompt_))

    def posterior(self, depth: int) -> FloatArray:
        """The Beta law of acceptance of the token after this depth, on the grid."""
        prior = np.array((self.yes, self.no))
        pooled = prior + self.counts.sum(0)
        yes, no = self.counts[depth] + prior.sum() * pooled / pooled.sum()
        return beta_law(yes, no)

    def observe(self, outcome: Outcome) -> None:
        """Count the tokens that were accepted and the one that was refused, by depth."""
        self.position_ = outcome.context + outcome.verdict.accepted + 1
        drafted, accepted = outcome.tree.height, outcome.verdict.accepted
        if not drafted:
            return
        self.counts *= self.fade
        for depth in range(min(accepted + 1, drafted)):
            self.counts[min(depth, DEEPEST - 1), int(depth == accepted)] += 1.0
