"""A masked diffusion model of exact tables over a tiny vocabulary.

The probs of a place are a fixed pseudo-random vector, a function of the whole text with its masks
and of the place, so that a text that differs anywhere shows.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.diffusion import Text

CHANGE = 0.05  # share of a place's probs that depends on the other places


@functools.cache
def table(salt: str, shape: tuple[int, ...], key: str) -> FloatArray:
    """Pseudo-random probs of this shape."""
    digest = hashlib.sha256(f"{salt}{key}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return rng.dirichlet([0.4] * shape[-1], shape[:-1])


@dataclass
class ToyDiffusion:
    """A model whose probs are looked up; `salt` names the table."""

    salt: str = "diffusion"
    vocab: int = 5
    change: float = CHANGE  # at 0 all steps could be foreseen, at 1 none
    passes: int = field(default=0, compare=False)

    def score(self, texts: Sequence[Text]) -> list[FloatArray]:
        """Probs of every place of each text."""
        self.passes += 1
        return [self._probs(text) for text in texts]

    def _probs(self, text: Text) -> FloatArray:
        shape = len(text), self.vocab
        own = table(self.salt, shape, "places")
        return (1 - self.change) * own + self.change * table(self.salt, shape, str(text))
