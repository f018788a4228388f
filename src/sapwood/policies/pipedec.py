"""One level of a tree a tick, each level a run of its own in the target's pipeline.

PipeDec (arXiv 2504.04104) puts the draft model into the pipeline of the target. In every tick it
extends the tree by one level, whose best nodes go into the first stage at once, while the levels
before are in the stages behind it. As soon as a token has left the last stage, the tree is pruned
to the branch of that token: nodes beside it are not expanded any more, and runs that hold no other
are cancelled. In the paper such nodes leave a run in the middle of the pipeline too; here a run
keeps its nodes as long as one of them counts.

The driver is `engine/pipeline.py`; where requests share passes this is a beam (`beam`).
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.overlap import OverlapGauge
from sapwood.core.part import at_least
from sapwood.core.pipeline import Window
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.policies.beam import Beam
from sapwood.policies.reach import value


@dataclass
class PipeDec(Beam):
    """One level of the tree a tick, sent into the pipeline as it is drafted."""

    beam: int = 4  # nodes of a level that are sent and expanded, >= 1
    children: int = 4  # of an expanded node, >= 1
    stages: int = 4  # of the target, >= 2; a model of fewer layers has fewer

    paper: ClassVar[str] = "2504.04104"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, children=self.children)
        at_least(2, stages=self.stages)

    def bind(self, setting: EngineContext) -> None:
        """Begin to measure whether the pipeline pays; shared by all requests."""
        super().bind(setting)
        self.gauge = OverlapGauge()

    def grow(self, window: Window, start: int) -> Frontier:
        """The nodes of the last level that were sent, once a tick."""
        tree = window.tree
        if len(tree) > start:
            return []
        last = max(int(tree.depths[node]) for node in window.sent)
        return [
            (node, self.children)
            for node in window.sent
            if tree.depths[node] == last and not tree.expanded[node] and window.alive(node)
        ]

    def choose(self, window: Window, start: int) -> list[int]:
        """The nodes of largest reach."""
        reach = value(window.tree, self.estimator)
        new = sorted(range(start, len(window.tree)), key=lambda node: -reach[node])
        return sorted(new[: self.beam])
