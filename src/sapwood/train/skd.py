"""Speculative knowledge distillation (arXiv 2410.11325): texts that student and target interleave.

The draft model proposes tokens; those outside the target's best 25 are replaced by draws of the
target. Temperatures and nuclei are those of the published configuration, and so is forward KL.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.train.distillspec import DistillSpecObjective
from sapwood.train.draft_model import Student


class InterleavedStudent(Student):
    """A draft model that was tuned on text which the target corrected."""

    kind: ClassVar[str] = "skd"


@dataclass(frozen=True)
class SkdObjective(DistillSpecObjective):
    """Tune a draft model on its own text, corrected by the target."""

    top: int = 25
    temperature: float = 0.5
    top_p: float = 0.5
    target_temperature: float = 0.2
    target_top_p: float = 0.5

    kind: ClassVar[str] = "skd"
    made: ClassVar[type[Student]] = InterleavedStudent
