"""Traversal verification for siblings that are independent draws."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.types import Draw
from sapwood.verifiers.traversal import Traversal


@dataclass
class TraversalIid(Traversal):
    """The traversal rule for siblings that are independent draws."""

    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    replacement: ClassVar[bool] = True
