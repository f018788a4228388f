"""Several heads trained on the same passes of the target, which are paid for once."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sapwood.core.array_types import IntArray
from sapwood.train.batches import TrainBatch
from sapwood.train.loop import RunState
from sapwood.train.objective import LossResult, Objective
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class MultiObjective:
    """Several objectives at once; their heads are independent."""

    objectives: tuple[Objective, ...]

    kind: str = "several"
    rate: float = 0.0  # each objective has its own
    matrix_rate: float = 0.0

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """The layers of all objectives, one after the other."""
        return tuple(
            layer for objective in self.objectives for layer in objective.features(teacher)
        )

    def build(self, teacher: Teacher, counts: IntArray) -> nn.ModuleList:
        """The new heads, each as it would be alone."""
        seed = torch.initial_seed()
        heads = nn.ModuleList()
        for objective in self.objectives:
            torch.manual_seed(seed)
            heads.append(objective.build(teacher, counts))
        return heads

    def taught(self, heads: Any) -> list[tuple[Objective, Any]]:
        """Each objective with its head."""
        return list(zip(self.objectives, heads, strict=True))

    def loss(self, heads: Any, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Losses of one batch for all heads."""
        results = []
        start = 0
        for objective, head in self.taught(heads):
            end = start + len(objective.features(teacher)) * teacher.width
            own = dataclasses.replace(batch, features=batch.features[..., start:end])
            results.append(objective.loss(head, teacher, own))
            start = end
        loss = torch.stack([result.loss for result in results]).sum()
        return LossResult(loss, torch.cat([result.agreement for result in results]), tuple(results))


def of_one(notes: RunState, index: int) -> RunState:
    """The run's state for one of several heads."""
    curve = []
    for point in notes.curve:
        loss, agreement = point.parts[index]
        curve.append(dataclasses.replace(point, loss=loss, agreement=agreement, parts=[]))
    return dataclasses.replace(notes, curve=curve)
