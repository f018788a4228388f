"""The target drafts over the first and the last few of its own keys (TriForce, MagicDec, StreamingLLM).

With a long text a pass waits for keys and values rather than for weights. The first tokens, to which every
row turns when it looks for nothing, and a window of the last ones make a small cache (arXiv 2309.17453)
from which the same weights say nearly the same (arXiv 2408.11049, 2404.11912). Keys are copied as the
target computed them, at their true positions; the window slides with the text. A text that fits the cache
is drafted by the target as it is. TriForce's published inner loop draws from the wrong law after a refusal;
here there is one level, and its law is the one that children are drawn from.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.own import Own
from sapwood.part import at_least
from sapwood.protocols import Backend


@dataclass
class SparseKv(Own):
    """The target itself, over the first and the last keys of its own cache."""

    sinks: int = 4  # first tokens that stay in sight, >= 0
    recent: int = 252  # last tokens in sight, >= 1; up to a quarter more before the window moves on

    paper: ClassVar[str] = "2408.11049"

    def __post_init__(self) -> None:
        at_least(0, sinks=self.sinks)
        at_least(1, recent=self.recent)

    def variant(self, target: Any) -> Backend:
        """The target with few keys."""
        made: Backend = target.variant(sinks=self.sinks, recent=self.recent)
        return made
