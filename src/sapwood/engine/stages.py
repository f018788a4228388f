"""Stages of targets that have none, and the scores of the runs of a window."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.pipeline import ExitDrafter
from sapwood.core.protocols import Backend, Session, TargetOutput, TreeInput
from sapwood.core.stage_runner import StageRunner
from sapwood.core.tree import Tree


@dataclass
class WholeRun:
    """Nodes in a target without stages: the last one runs them, the others do nothing."""

    tree: Tree
    first: int
    scores: TargetOutput | None = None


class WholeStages:
    """A target that runs as a whole: its pass takes place when a run reaches the last stage.

    In text and waste this is the pipeline, but no stage works beside another. Nodes of cancelled
    runs are scored with the next run, since a tree is scored without gaps.
    """

    parallel = False

    def __init__(self, target: Backend, session: Session, stages: int) -> None:
        self.target = target
        self.session = session
        self.stages = stages
        self.scored = 0

    def begin(self, tree: Tree, since: int) -> WholeRun:
        """A run of the nodes from `since` on."""
        if not since:
            self.scored = 0
        return WholeRun(tree, since)

    def step(self, run: WholeRun, stage: int) -> None:
        """Score the nodes at the last stage."""
        if stage == self.stages - 1:
            run.first = self.scored
            [run.scores] = self.target.score([TreeInput(self.session, run.tree, self.scored)])
            self.scored = len(run.tree)

    def states(self, run: WholeRun) -> Any:
        """None: the layers are not known."""
        return None

    def output(self, run: WholeRun) -> tuple[int, TargetOutput]:
        """Scores of the nodes since the last pass."""
        assert run.scores is not None
        return run.first, run.scores

    def drop(self, run: WholeRun, stage: int) -> None:
        """Nothing was computed yet."""


def stages_of(target: Backend, session: Session, stages: int, drafter: object) -> StageRunner:
    """The target's own stages for this session, or ones that stand for them."""
    split = target.capabilities.stages
    cut = drafter.exit_layer if isinstance(drafter, ExitDrafter) else 0
    own = None if split is None else split(session, stages, cut)
    return own or WholeStages(target, session, stages)


class RunOutputs(TargetOutput):
    """Scores of a window's nodes, each of the run that it was in."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, TargetOutput]] = []  # first node, end, scores

    def add(self, first: int, end: int, scores: TargetOutput) -> None:
        """Add the nodes of a run."""
        self.parts.append((first, end, scores))

    def knows(self, node: int) -> bool:
        """True when the node was scored."""
        return any(first <= node < end for first, end, _ in self.parts)

    def _of(self, node: int) -> tuple[TargetOutput, int]:
        """Scores of a node and its row in them."""
        for first, end, scores in self.parts:
            if first <= node < end:
                return scores, node - first
        raise ValueError(f"node {node} was cancelled before it was scored")

    def argmax(self) -> IntArray:
        """Best next token of each node; -1 for cancelled ones."""
        best = np.full(max(end for _, end, _ in self.parts), -1)
        for first, end, scores in self.parts:
            best[first:end] = scores.argmax()
        return best

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each node; -1 and -inf for cancelled ones."""
        shape = (max(end for _, end, _ in self.parts), count)
        tokens, logs = np.full(shape, -1), np.full(shape, -np.inf)
        for first, end, scores in self.parts:
            tokens[first:end], logs[first:end] = scores.topk(count)
        return tokens, logs

    def logits(self, row: int) -> FloatArray:
        """Raw logits after a node."""
        scores, index = self._of(row)
        return scores.logits(index)

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of nodes, [rows, layers * width]."""
        found = [self._of(row) for row in rows]
        states = [scores.hidden([index], layers) for scores, index in found]
        joined = states[0].new_empty((len(states), states[0].shape[1]))
        for place, state in enumerate(states):
            joined[place] = state[0]
        return joined
