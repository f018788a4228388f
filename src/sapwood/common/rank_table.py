"""Share of right drafts by rank and depth, and the tree of ranks made from it."""

import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.common.drafter_store import find
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.core.types import BackendInfo

Ranks = tuple[int, ...]  # of the nodes on a path below the root

RANKS = "ranks.json"  # beside a head: how often each rank is right, [levels][ranks]
# the default table of `usual`
FIRST = 0.6
FADE = 0.8
LEVELS = 5
WIDTH = 10


def rank_tree(chances: Sequence[Sequence[float]], nodes: int) -> list[Ranks]:
    """The paths that are right most often, best first, from `chances` [levels][ranks] of one step.

    A rank never counts more than the one before it, whatever was measured, so that siblings are
    added in order.
    """
    levels = [falling(level) for level in chances]
    if not levels or not levels[0]:
        return []
    found: list[Ranks] = []
    # (minus the path's probability, path, its parent's probability)
    heap: list[tuple[float, Ranks, float]] = [(-levels[0][0], (0,), 1.0)]
    while heap and len(found) < nodes:
        worth, path, above = heapq.heappop(heap)
        found.append(path)
        depth = len(path)
        rank = path[-1] + 1
        if rank < len(levels[depth - 1]):
            heapq.heappush(heap, (-above * levels[depth - 1][rank], (*path[:-1], rank), above))
        if depth < len(levels) and levels[depth]:
            heapq.heappush(heap, (worth * levels[depth][0], (*path, 0), -worth))
    return found


def falling(level: Sequence[float]) -> list[float]:
    """The running minimum of these numbers."""
    return [min(level[: rank + 1]) for rank in range(len(level))]


def usual() -> list[list[float]]:
    """Default table, [levels][ranks]: chances that fall from level to level and rank to rank."""
    firsts = [FIRST * FADE**level for level in range(LEVELS)]
    return [[first * (1 - first) ** rank for rank in range(WIDTH)] for first in firsts]


def measured(head: str, info: "BackendInfo") -> list[list[float]] | None:
    """The table measured for a trained head; None if there is no such head or table."""
    try:
        folder = Path(head).expanduser() if "/" in head else find(head, info.model, info.weights)
    except SapwoodError:
        return None
    path = folder / RANKS
    if not path.is_file():
        return None
    try:
        return [
            [float(chance) for chance in level]
            for level in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, TypeError) as error:
        raise SapwoodError(
            f"{path} is no table of numbers ({error}); delete it, or train the head again"
        ) from error
