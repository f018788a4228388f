"""Memory that will be wanted after a pass: whoever helped with it fetches that while the caller is busy with Python.

A trained head is read from memory in every round, since a pass leaves nothing of it in the caches. Between the
pass and the head the other cores have nothing to do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.arrays import IntArray
from sapwood.backends.torch.packed.kernels import compiled
from sapwood.backends.torch.packed.machine import LINE, address, load_atomic
from sapwood.backends.torch.packed.team import share

NOTHING = np.empty((0, 2), np.int64)


@compiled
def fetch_all(places: Any, worker: int, workers: int) -> None:
    """One helper's share of these places, int64 [n, 2]: addresses and bytes."""
    for p in range(places.shape[0]):
        start, stop = share(places[p, 1] // LINE, worker - 1, workers - 1)
        for line in range(start, stop):
            load_atomic(places[p, 0] + line * LINE)  # a mere hint is dropped while many are under way


class Held:
    """A table of where arrays lie; whoever has it keeps them in memory."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self.arrays, self.table = arrays, np.array([(address(array), array.nbytes) for array in arrays])
        self.__array_interface__ = self.table.__array_interface__  # an array made of this refers to it


def places_of(arrays: Sequence[np.ndarray[Any, Any]]) -> IntArray:
    """Addresses and bytes of arrays, [n, 2], which live as long as this does: a helper may come to them late."""
    return np.asarray(Held(arrays))


class Soon:
    """What the next pass is to have fetched; one pass only, for not every pass is followed by the same."""

    def __init__(self) -> None:
        self._places = NOTHING

    def want(self, places: IntArray) -> None:
        """Have these fetched after the next pass."""
        self._places = places

    def take(self) -> IntArray:
        """What was wanted."""
        places, self._places = self._places, NOTHING
        return places


SOON = Soon()
