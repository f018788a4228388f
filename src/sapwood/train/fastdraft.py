"""FastDraft (arXiv 2411.11055): pre-train a draft model, then tune it on text the target wrote.

Labels are tokens, not probabilities, in both stages. Pre-training learns every token of a text
(`whole=true`); tuning learns the target's answers alone, from the folder of the first stage
(`start`). The paper pre-trains on ten billion tokens of natural text and code; here both stages
read the corpus of the target.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.train.draft_model import DraftModelObjective, Student


class FastDraftStudent(Student):
    """A draft model that was trained on tokens alone."""

    kind: ClassVar[str] = "fastdraft"


@dataclass(frozen=True)
class FastDraftObjective(DraftModelObjective):
    """Train a draft model on the tokens of the target's text."""

    hard: float = 0.0
    labels: str = "tokens"

    kind: ClassVar[str] = "fastdraft"
    made: ClassVar[type[Student]] = FastDraftStudent
