"""Short drafts one behind another in the target's pipeline, each only as bold as it may be.

PipeInfer (arXiv 2407.11798) keeps a pipeline of machines busy by continuous speculation: while runs
are in the stages, further ones of at most `batch` tokens are launched behind them. A sequence ends
before a token whose probability is below a cutoff, and forks where a further token exceeds another;
both cutoffs rise by `recovery` with each run that is launched before a result is back, so that
speculation does not flood the pipeline, and fall by `decay` with each rejection in a row. Nothing
is launched once the first cutoff reaches 1. Runs that a result has made invalid are cancelled where
they are. Constants are those of the example in the published code's documentation.

The driver is `engine/pipeline.py`; where requests share passes this is a plain chain.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.overlap import OverlapGauge
from sapwood.core.part import at_least, between
from sapwood.core.pipeline import Window
from sapwood.core.protocols import EngineContext, Frontier
from sapwood.core.types import Prune
from sapwood.policies.chain import Chain


@dataclass
class PipeInfer(Chain):
    """Runs of a few tokens one behind another, under cutoffs that rise with each of them."""

    accept: float = 0.001  # probability below which a token is not sent
    split: float = 0.8  # probability from which a further token begins a branch
    recovery: float = 0.4  # added to both for each run that is out
    decay: float = 0.01  # taken from both for each rejection in a row
    batch: int = 4  # tokens of a sequence in one run, >= 1
    branches: int = 3  # sequences, >= 1
    stages: int = 4  # of the target, >= 2; a model of fewer layers has fewer

    paper: ClassVar[str] = "2407.11798"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        between(
            0, 1, accept=self.accept, split=self.split, recovery=self.recovery, decay=self.decay
        )
        at_least(1, batch=self.batch, branches=self.branches)
        at_least(2, stages=self.stages)

    def bind(self, setting: EngineContext) -> None:
        """Begin to measure whether the pipeline pays; shared by all requests."""
        super().bind(setting)
        self.gauge = OverlapGauge()

    def cutoffs(self, window: Window) -> tuple[float, float]:
        """Probabilities that a token, and a token beside it, must have in this tick."""
        change = (window.ticks - 1) * self.recovery - window.misses * self.decay
        return self.accept + change, self.split + change

    def grow(self, window: Window, start: int) -> Frontier:
        """The ends of all sequences, until the run has its tokens."""
        tree = window.tree
        new = self.choose(window, start)
        if self.cutoffs(window)[0] >= 1.0 or (len(tree) > start and not new):
            return []
        deepest = int(tree.depths[window.sent].max()) + self.batch
        return [
            (node, self.branches)
            for node in (*window.sent, *new)
            if not tree.expanded[node] and tree.depths[node] < deepest and window.alive(node)
        ]

    def choose(self, window: Window, start: int) -> list[int]:
        """First children above the cutoff, others above the second; also those left unsent."""
        tree = window.tree
        accept, split = self.cutoffs(window)
        sent = {*window.sent}
        wide = dict[int, int]()  # nodes chosen of each depth
        chosen = list[int]()
        for node in range(window.sent[-1] + 1, len(tree)):
            depth = int(tree.depths[node])
            likely = tree.probs[node] >= (split if tree.ranks[node] else accept)
            if likely and int(tree.parents[node]) in sent and wide.get(depth, 0) < self.branches:
                wide[depth] = wide.get(depth, 0) + 1
                sent.add(node)
                chosen.append(node)
        return chosen
