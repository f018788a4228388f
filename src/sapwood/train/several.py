"""Several heads taught on the same passes of the target: the reading is paid for once."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sapwood.arrays import IntArray
from sapwood.train.batches import Batch
from sapwood.train.course import Course, Lesson
from sapwood.train.loop import Notes
from sapwood.train.target import Teacher


@dataclass(frozen=True)
class Several:
    """Courses side by side; their heads know nothing of one another."""

    courses: tuple[Course, ...]

    kind: str = "several"
    rate: float = 0.0  # each course has its own
    matrix_rate: float = 0.0

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """The layers of all courses, one after the other."""
        return tuple(layer for course in self.courses for layer in course.features(teacher))

    def build(self, teacher: Teacher, counts: IntArray) -> nn.ModuleList:
        """The fresh heads, each as it would be alone."""
        seed, heads = torch.initial_seed(), nn.ModuleList()
        for course in self.courses:
            torch.manual_seed(seed)
            heads.append(course.build(teacher, counts))
        return heads

    def taught(self, heads: Any) -> list[tuple[Course, Any]]:
        """Each course with its head."""
        return list(zip(self.courses, heads, strict=True))

    def lesson(self, heads: Any, teacher: Teacher, batch: Batch) -> Lesson:
        """Teach one batch to all."""
        lessons, start = [], 0
        for course, head in self.taught(heads):
            end = start + len(course.features(teacher)) * teacher.width
            own = dataclasses.replace(batch, features=batch.features[..., start:end])
            lessons.append(course.lesson(head, teacher, own))
            start = end
        loss = torch.stack([lesson.loss for lesson in lessons]).sum()
        return Lesson(loss, torch.cat([lesson.agreement for lesson in lessons]), tuple(lessons))


def of_one(notes: Notes, index: int) -> Notes:
    """What happened to one of several heads."""
    curve = []
    for point in notes.curve:
        loss, agreement = point.parts[index]
        curve.append(dataclasses.replace(point, loss=loss, agreement=agreement, parts=[]))
    return dataclasses.replace(notes, curve=curve)
