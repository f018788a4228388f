"""PARD (arXiv 2504.18583): a draft model adapted to mask tokens drafts several in one pass.

All mask rows have the same token, one of the vocabulary that texts do not use; the model's config
names it as `pard_token`. `sapwood train pard` adapts the target's draft model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext
from sapwood.drafters.compose.masked_base import MaskedBase
from sapwood.errors import SapwoodError

UNKNOWN = -1  # the id of the mask token is the one in the model's config


@dataclass
class Pard(MaskedBase):
    """A draft model that fills mask tokens: several tokens from one of its passes."""

    made_by: str = "pard"
    rows: int = 7  # mask rows: tokens drafted beyond the first, >= 1
    mask: int = UNKNOWN  # id of the mask token

    paper: ClassVar[str] = "2504.18583"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows)
        at_least(UNKNOWN, mask=self.mask)

    def bind(self, setting: EngineContext) -> None:
        """Load the model, compare vocabularies and find the mask token."""
        super().bind(setting)
        model = self.backend.capabilities.model
        known = None if model is None else model.config.to_dict().get("pard_token")
        found = self.mask if self.mask != UNKNOWN else known
        if found is None:
            raise SapwoodError(
                f"{self.backend.info.model} names no mask token; give pard(mask=ID), or adapt a "
                "draft model with `sapwood train pard`"
            )
        self.masks = [int(found)] * self.rows

    def _ahead(self) -> Sequence[int]:
        """The mask token, once for each later token."""
        return self.masks
