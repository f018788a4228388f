"""Optimal verification for siblings that are independent draws."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.types import Draw
from sapwood.verifiers.optimal import Optimal


@dataclass
class OptimalIid(Optimal):
    """The optimal rule for siblings that are independent draws."""

    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    replacement: ClassVar[bool] = True
