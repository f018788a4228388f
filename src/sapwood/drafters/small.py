"""The small model that drafts for the target, where one was trained; the target's own recycled guesses where none was.

For the systems that are published with "a smaller model": they run on every target by name, and with
the pair their authors mean wherever there is one.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.drafters.found import Found
from sapwood.drafters.model import Model
from sapwood.drafters.recycling import Recycling
from sapwood.part import Part
from sapwood.protocols import Drafter, Setting
from sapwood.trained import has


@dataclass
class Small(Found):
    """The small model that was trained to draft for this one, if there is one; else the target's recycled guesses."""

    otherwise: Drafter | None = field(default_factory=Recycling)

    paper: ClassVar[str] = "2211.17192"

    def bind(self, setting: Setting) -> None:
        """Let what stands in draft as the small model would."""
        if self.otherwise is not None and hasattr(self.otherwise, "draws"):
            self.otherwise.draws = self.draws  # type: ignore[misc]
        super().bind(setting)

    def _able(self, setting: Setting) -> bool:
        return has("draft-model", setting.target.info.model)

    def _trained(self) -> Part:
        return Model(draws=self.draws)
