"""A chain whose length is set by Thompson sampling of the acceptance rate at each depth.

The control of EESD (arXiv 2406.03853): each depth keeps a Beta posterior of "a token drafted here
is accepted"; before a further token its chance is drawn from the posterior, and drafting goes on
with that chance, or while it exceeds a cutoff. Refusals are counted only where a token was
verified, old rounds decay, and a depth that is seldom reached is smoothed by the counts of all
depths. The draws are noise keyed by prompt, position and depth under the part's own seed; they
depend on no token that is still to be drawn, so drafts of every kind keep the target's
distribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.bandits import CHANCES, beta_probs, prompt_key
from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome
from sapwood.policies.chain import Chain

DEEPEST = 64  # depths with a posterior of their own; those below share the last
# uses of keyed noise, distinct from those of the request's own noise
CHANCE = 3
COIN = 4


@dataclass
class Thompson(Chain):
    """A chain that goes on with a chance drawn from the acceptance posterior at its depth."""

    cutoff: float = 0.0  # go on while the drawn chance exceeds this; 0: go on with that chance
    # acceptances and refusals of the prior; their sum is the weight of all depths' counts at each
    yes: float = 4.0
    no: float = 1.0
    fade: float = 0.99  # weight that a round keeps after the next one
    most: int = 20  # longest chain
    seed: int = 0

    paper: ClassVar[str] = "2406.03853"

    def __post_init__(self) -> None:
        between(0, 1, cutoff=self.cutoff, fade=self.fade)
        between(1e-3, 1e6, yes=self.yes, no=self.no)
        at_least(1, most=self.most)

    def bind(self, setting: EngineContext) -> None:
        """Begin with empty counts, [depth, yes or no], shared by all requests."""
        self.counts = np.zeros((DEEPEST, 2))

    def reset(self, request: RequestContext) -> None:
        """Key the noise by the prompt."""
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)
        self.position_ = len(request.prompt) - 1

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain; the first token is always drafted."""
        found = super().frontier(tree, budget)
        depth = tree.height
        if not found or depth >= self.most:
            return []
        return found if depth == 0 or self.goes_on(depth) else []

    def goes_on(self, depth: int) -> bool:
        """True when a chain of this depth gets one more token."""
        probs = self.posterior(min(depth, DEEPEST - 1))
        theta = float(
            CHANCES[self.rng_.pick(probs, NoiseKey(self.position_, CHANCE, depth, self.prompt_))]
        )
        if self.cutoff:
            return theta > self.cutoff
        return self.rng_.flip(theta, NoiseKey(self.position_, COIN, depth, self.prompt_))

    def posterior(self, depth: int) -> FloatArray:
        """The Beta posterior of the acceptance rate after this depth, on the grid."""
        prior = np.array((self.yes, self.no))
        pooled = prior + self.counts.sum(0)
        yes, no = self.counts[depth] + prior.sum() * pooled / pooled.sum()
        return beta_probs(yes, no)

    def observe(self, outcome: Outcome) -> None:
        """Count the tokens that were accepted and the one that was refused, by depth."""
        self.position_ = outcome.context + outcome.verdict.accepted + 1
        drafted, accepted = outcome.tree.height, outcome.verdict.accepted
        if not drafted:
            return
        self.counts *= self.fade
        for depth in range(min(accepted + 1, drafted)):
            self.counts[min(depth, DEEPEST - 1), int(depth == accepted)] += 1.0
