"""The draft model that was trained for the target, if there is one; else token recycling.

For systems that are published with "a smaller model": they run on every target by name, and with
the model their authors mean where there is one.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.common.drafter_store import has
from sapwood.core.protocols import Drafter, EngineContext
from sapwood.core.types import BackendInfo
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.lookup.recycling import Recycling


@dataclass
class AutoDraftModel(AutoHead):
    """The draft model trained for this target, if there is one; else token recycling."""

    otherwise: Drafter | None = field(default_factory=Recycling)

    paper: ClassVar[str] = "2211.17192"
    wanted: ClassVar[str] = "draft model"

    @property
    def stands_alone(self) -> bool:  # type: ignore[override]
        """True if the drafter that is used without a trained model does not read the target."""
        return self.otherwise is None or self.otherwise.stands_alone

    def bind(self, setting: EngineContext) -> None:
        """Give the fallback the same kind of draws."""
        if self.otherwise is not None:
            self.otherwise.draws = self.draws  # type: ignore[misc]
        super().bind(setting)

    def _able(self, info: BackendInfo) -> bool:
        return has("draft-model", info.model, info.weights)

    def _trained(self) -> Drafter:
        return DraftModel(draws=self.draws)
