"""The layers of a model in stages: runs of one tree, one stage behind another.

Every run is a range of nodes of the tree in flight. A stage writes the keys and values of its own
layers at the slots of the run, and reads those of the runs before, which have left it already; so
runs in different stages touch different layers, and may run at the same time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sapwood.backends.torch.network import PartialNetwork, PassInput
from sapwood.backends.torch.output import TorchOutput
from sapwood.backends.torch.session import TorchSession
from sapwood.core.protocols import Session, TargetOutput
from sapwood.core.tree import Tree
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.backends.torch.backend import TorchBackend


@dataclass
class StagedRun:
    """Rows on their way through the stages."""

    rows: PassInput
    since: int  # the first node
    states: Tensor | None = None  # behind the last stage that was run, [rows, width]
    early: Tensor | None = None  # behind the first stage
    scores: TorchOutput | None = None


class TorchStages:
    """The stages of a model for the window of one session."""

    def __init__(self, network: PartialNetwork, session: TorchSession, bounds: list[int]) -> None:
        self.network = network
        self.session = session
        self.bounds = bounds  # first layer of each stage, and the number of layers
        self.stages = len(bounds) - 1

    @property
    def parallel(self) -> bool:
        """True while the stages may run at the same time."""
        return self.network.parallel_stages

    def begin(self, tree: Tree, since: int) -> StagedRun:
        """A run of the nodes from `since` on."""
        self.session.check(tree, since)
        block, span = self.session.begin(tree, since)
        self.session.scored(tree, {})  # the next run follows before this one is scored
        return StagedRun(PassInput(tree.tokens[since:], [block], [span]), since)

    @torch.inference_mode()
    def step(self, run: StagedRun, stage: int) -> None:
        """Run the nodes through the layers of a stage."""
        first, stop = self.bounds[stage : stage + 2]
        run.states, logits = self.network.span(run.rows, first, stop, run.states)
        if not stage:
            run.early = run.states
        if logits is not None:
            assert run.early is not None
            hidden = {self.bounds[1]: run.early, stop: run.states}
            run.scores = TorchOutput(logits, hidden)

    def states(self, run: StagedRun) -> Tensor | None:
        """States that left the first stage, [nodes, width]."""
        return run.early

    def output(self, run: StagedRun) -> tuple[int, TargetOutput]:
        """The first node of the run, and its scores."""
        assert run.scores is not None
        return run.since, run.scores

    @torch.inference_mode()
    def drop(self, run: StagedRun, stage: int) -> None:
        """Cancel a run: later runs read its slots under a mask, so they must hold numbers."""
        [span] = run.rows.spans
        places = span.slots.where(range(span.start, span.start + span.rows))
        for buffer in span.slots.buffers:
            buffer[:, :, places] = 0


def torch_stages(
    backend: "TorchBackend", session: Session, stages: int, cut: int
) -> TorchStages | None:
    """Stages of as many layers each as possible; None if the model cannot be cut."""
    network = backend.network
    if not isinstance(network, PartialNetwork) or not isinstance(session, TorchSession):
        return None
    if session.slots.keeps:  # a prefix cache wants the states of all layers with each commit
        return None
    bounds = stage_bounds(backend.layers, stages, cut)
    try:
        for layer in bounds[1:-1]:
            network.check_layer(layer)
    except SapwoodError:
        return None
    return TorchStages(network, session, bounds) if len(bounds) > 2 else None


def stage_bounds(layers: int, stages: int, cut: int) -> list[int]:
    """First layer of each stage, and the number of layers; stage one ends at `cut`, if any."""
    first = cut or max(1, round(layers / stages))
    rest = max(1, min(stages - 1, layers - first))
    return [0, *(first + round(step * (layers - first) / rest) for step in range(rest + 1))]
