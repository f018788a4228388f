"""Few combinations of many parameters, among which every two values meet."""

import itertools
from collections.abc import Iterable
from typing import Any


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations, one value of each axis, such that every two values of two axes meet.

    A fault that needs three particular values at once is rare: nearly all show where two meet.
    Greedy, the combination with most new pairs first, and so the same in every process.
    """
    values = [list(axis) for axis in axes]
    places = list(itertools.product(*(range(len(axis)) for axis in values)))
    missing = {pair for place in places for pair in pairs_of(place)}
    chosen = []
    while missing:
        best = max(places, key=lambda place: len(pairs_of(place) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return [tuple(axis[at] for axis, at in zip(values, place, strict=True)) for place in chosen]


def pairs_of(place: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    """All pairs of positions of a combination, each with its axis."""
    return set(itertools.combinations(enumerate(place), 2))
