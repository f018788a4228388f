"""The drafters of a recipe by their bits in a node's sources, named alike everywhere."""

from sapwood.core.protocols import Drafter
from sapwood.core.types import BackendInfo
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.registry import name_of


def drafters_in_use(drafter: Drafter, info: BackendInfo) -> list[Drafter]:
    """The drafters by bit; one that looks for a trained head counts as the one it finds."""
    if isinstance(drafter, Merge):
        return [single for inner in drafter.drafters for single in drafters_in_use(inner, info)]
    if isinstance(drafter, AutoHead):
        found = drafter.choice(info)
        return [drafter] if found is None else drafters_in_use(found, info)[:1]
    return [drafter]


def drafter_names(drafter: Drafter, info: BackendInfo) -> list[str]:
    """Names of drafters by bit."""
    return [name_of(single) for single in drafters_in_use(drafter, info)]
