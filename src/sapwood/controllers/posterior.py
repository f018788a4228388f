"""The chain length that is best under an acceptance rate drawn from its posterior.

Thompson sampling as in EESD (arXiv 2406.03853), over lengths instead of token by token: the rate
has a Beta posterior of accepted and rejected tokens, one rate is drawn each round, and the chain
has the length of most expected tokens per second under it. With few trials the draws vary widely,
so a length is tried while it may still be the best: no bonus for exploration is needed, and no
schedule of probes after rounds without a draft. The policy `thompson` draws at every token and
ignores cost.
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
