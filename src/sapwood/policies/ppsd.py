"""The exit behind the first stage drafts a token a tick, and the other stages check it.

PPSD (arXiv 2509.19368): verify while drafting. The target's layers are a pipeline. As soon as a
token has left the first stage, the exit there names the next one, which enters the first stage
while the token before goes on to the second. There is no draft length: a token is confirmed when it
leaves the last stage, and a wrong one costs the tokens behind it. With a share a of right tokens, a
token takes a + (1 - a) S ticks instead of the S of the stages one after another.

The drafter is `layer-exit`, the driver `engine/pipeline.py`; where requests share passes this is a
plain chain.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.overlap import OverlapGauge
from sapwood.core.part import at_least
from sapwood.core.pipeline import Window
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.policies.chain import Chain


@dataclass
class Ppsd(Chain):
    """A token a tick by the exit behind the first stage."""

    stages: int = 4  # of the target, >= 2; a model of fewer layers has fewer

    paper: ClassVar[str] = "2509.19368"

    def __post_init__(self) -> None:
        at_least(2, stages=self.stages)

    def bind(self, setting: EngineContext) -> None:
        """Begin to measure whether the pipeline pays; shared by all requests."""
        super().bind(setting)
        self.gauge = OverlapGauge()

    def grow(self, window: Window, start: int) -> Frontier:
        """The node that has just left the first stage."""
        if len(window.tree) > start:
            return []
        return [(node, 1) for node in window.left_first if window.alive(node)]

    def choose(self, window: Window, start: int) -> list[int]:
        """All nodes of the tick."""
        return [*range(start, len(window.tree))]
