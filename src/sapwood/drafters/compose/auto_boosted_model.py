"""A second draft model that was trained on the first one's mistakes (SpecInfer, arXiv 2305.09781).

SpecInfer tunes several small models one after another, each on the text where those before it are
wrong, and merges their trees. `sapwood train boosted-draft-model` trains such a model behind the
target's draft model; where there is none, token recycling drafts in its place, and the recipe says
so once.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.drafter_store import find, has
from sapwood.core.protocols import Drafter
from sapwood.core.types import BackendInfo
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.recycling import Recycling

BOOSTED = "boosted-draft-model"  # the kind that is trained


@dataclass
class AutoBoostedModel(AutoDraftModel):
    """The second draft model of this target, if one was trained; else token recycling."""

    otherwise: Drafter | None = field(default_factory=lambda: Recycling(pairs=0))

    paper: ClassVar[str] = "2305.09781"
    wanted: ClassVar[str] = "boosted draft model"

    def choice(self, info: BackendInfo) -> Drafter | None:
        """The drafter that is used for this model."""
        if not self._able(info):
            return self.otherwise
        return DraftModel(model=str(find(BOOSTED, info.model, info.weights)), draws=self.draws)

    def _able(self, info: BackendInfo) -> bool:
        return has(BOOSTED, info.model, info.weights)
