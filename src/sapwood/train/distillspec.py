"""DistillSpec (arXiv 2310.08461): a draft model is tuned on its own text, by a chosen divergence.

The paper compares forward and reverse KL, the Jensen-Shannon divergence and the total variation
distance, finds no one best for all tasks, and recommends answers that the draft model writes
itself. It starts from a trained draft model; so does this kind, if the target has one.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.drafter_store import find, has
from sapwood.train.draft_model import DraftModelObjective, Student
from sapwood.train.teacher import Teacher


class DistilledStudent(Student):
    """A draft model that was tuned on its own text."""

    kind: ClassVar[str] = "distillspec"


@dataclass(frozen=True)
class DistillSpecObjective(DraftModelObjective):
    """Tune a draft model on its own text."""

    hard: float = 0.0
    on_policy: float = 1.0

    kind: ClassVar[str] = "distillspec"
    made: ClassVar[type[Student]] = DistilledStudent

    def start_folder(self, teacher: Teacher) -> str:
        """The named folder, or that of the draft model that was trained for the target."""
        info = teacher.backend.info
        if self.start or not has(DraftModelObjective.kind, info.model, info.weights):
            return self.start
        return str(find(DraftModelObjective.kind, info.model, info.weights))
