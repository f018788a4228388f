"""The chain length that is best under an acceptance rate drawn from its posterior.

Thompson sampling as in EESD (arXiv 2406.03853), over lengths instead of token by token: the rate
has a Beta posterior of accepted and refused tokens, one rate is drawn each round, and the chain has
the length of most expected tokens per second under it. Few trials make for varied draws, so lengths
are tried as long as they may still be best, drafting nothing is left again without a schedule of
probes, and no bonus is needed. The policy `thompson` tosses its coins at every token and knows no
cost.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.bandits import ARM, CHANCES, beta_probs, prompt_key
from sapwood.controllers.smartspec import SmartSpec
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey, Rng


@dataclass
class Posterior(SmartSpec):
    """The chain length of most tokens per second under a rate drawn from its posterior."""

    bonus: float = 1.0
    seed: int = 0

    paper: ClassVar[str] = "2406.03853"

    def reset(self, request: RequestContext) -> None:
        """Key the noise by the prompt."""
        super().reset(request)
        self.sampler_ = request.sampler
        self.before_ = len(request.prompt) - 1
        self.rng_: Rng = KeyedRng(self.seed)
        self.prompt_ = prompt_key(request.prompt)

    def rate(self) -> float:
        """A draw from the posterior."""
        place = NoiseKey(self.before_ + self.sampler_.emitted, ARM, 0, self.prompt_)
        return float(CHANCES[self.rng_.pick(beta_probs(*self.counts()), place)])
