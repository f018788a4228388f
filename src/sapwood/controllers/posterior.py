"""The length that would be best if the acceptance rate were one drawn from what is known of it.

Thompson sampling as in EESD (arXiv 2406.03853), over lengths instead of token by token: the rate has a
Beta posterior of accepted and refused tokens, one rate is drawn each round, and the chain has the length of most
expected tokens per second under it. Few trials make for varied draws, so lengths are tried as long as they
may still be best, drafting nothing is left again without a schedule of probes, and no bonus is needed.
The policy `thompson` tosses its coins at every token and knows no cost.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.controllers.smartspec import SmartSpec
from sapwood.learners import ARM, CHANCES, beta_law, prompt_key
from sapwood.protocols import Request
from sapwood.rng import Keyed, Place, Rng


@dataclass
class Posterior(SmartSpec):
    """The chain length of most expected tokens per second under an acceptance rate drawn from its posterior."""

    bonus: float = 1.0
    seed: int = 0

    paper: ClassVar[str] = "2406.03853"

    def reset(self, request: Request) -> None:
        """Key the noise by the prompt."""
        super().reset(request)
        self.sampler_, self.before_ = request.sampler, len(request.prompt) - 1
        self.rng_: Rng = Keyed(self.seed)
        self.prompt_ = prompt_key(request.prompt)

    def rate(self) -> float:
        """A draw from the posterior."""
        place = Place(self.before_ + self.sampler_.emitted, ARM, 0, self.prompt_)
        return float(CHANCES[self.rng_.pick(beta_law(*self.counts()), place)])
