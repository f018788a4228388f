"""Self-drafting over a part of the keys (TriForce, MagicDec, StreamingLLM, SnapKV).

With a long context a pass waits for keys and values rather than for weights. The first tokens,
which attention needs as sinks, and a window of the last ones make a small cache (arXiv 2309.17453)
with nearly the same output (arXiv 2408.11049, 2404.11912). Keys are copied as the target computed
them, at their true positions; the window moves with the text. Between both, `chosen` keys are added
that the target's last queries attend to, for each layer and head: in chunks by their mean key, as
TriForce retrieves them, or one by one by summed attention, as SnapKV does. They are chosen anew
when the window is. Only the model's own code shows its queries; on the int8 and CUDA networks the
window has so many more of the last keys instead. A text that fits the cache is
drafted by the target itself. TriForce's published inner loop draws from the wrong distribution
after a rejection; here there is one level, and q is the distribution that children are drawn from.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import Backend
from sapwood.drafters.self.self_base import SelfBase, made_cheaper
from sapwood.errors import SapwoodError


@dataclass
class SparseKv(SelfBase):
    """The target itself, over the first, the last and chosen keys of its own cache."""

    sinks: int = 4  # first tokens that stay in sight, >= 0
    recent: int = 252  # last tokens in sight, >= 1; up to a quarter more before the window moves on

    chosen: int = 0  # keys between them, by the attention of the last queries; 0: none
    chunk: int = 1  # keys that are chosen together, by their mean; 1: each by itself

    paper: ClassVar[str] = "2408.11049"

    def __post_init__(self) -> None:
        at_least(0, sinks=self.sinks)
        at_least(1, recent=self.recent, chunk=self.chunk)
        at_least(0, chosen=self.chosen)
        if self.chosen % self.chunk:
            raise SapwoodError(
                f"chosen={self.chosen} of sparse-kv must be a multiple of chunk={self.chunk}"
            )

    def variant(self, target: Backend) -> Backend:
        """The target with few keys."""
        return made_cheaper(
            target, sinks=self.sinks, recent=self.recent, chosen=self.chosen, chunk=self.chunk
        )
