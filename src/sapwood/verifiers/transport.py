"""The transport problem of one node: assign the chance of each possible draft to its tokens.

A maximum flow from drafts, each with its chance, to symbols, each with the room its probability
leaves. Solved by shortest augmenting paths, which is slow and exact up to rounding; a flow short of
the maximum would still be a valid plan.
"""

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from sapwood.core.array_types import BoolArray, FloatArray

SMALL = 1e-14  # chance that is not worth another path


def transport(
    drafts: Sequence[frozenset[int]], chances: FloatArray, room: FloatArray
) -> FloatArray:
    """The maximum flow from drafts to the symbols they hold, [drafts, symbols]."""
    holds = np.zeros((len(drafts), len(room)), bool)
    for row, draft in enumerate(drafts):
        holds[row, list(draft)] = True
    flow = np.zeros(holds.shape)
    left = chances.copy()
    room = room.copy()
    while hops := shortest(holds, flow, left, room):
        amount = min(left[hops[0][0]], room[hops[-1][1]])
        for (_, symbol), (row, _) in itertools.pairwise(hops):
            amount = min(amount, flow[row, symbol])
        left[hops[0][0]] -= amount
        room[hops[-1][1]] -= amount
        for row, symbol in hops:
            flow[row, symbol] += amount
        for (_, symbol), (row, _) in itertools.pairwise(hops):
            flow[row, symbol] -= amount  # this draft hands it to the next symbol instead
    return np.maximum(flow, 0.0)


def shortest(
    holds: BoolArray, flow: FloatArray, left: FloatArray, room: FloatArray
) -> list[tuple[int, int]]:
    """A shortest augmenting path from a draft with chance left to a symbol with room.

    Given as (draft, symbol) hops; empty if there is none.
    """
    # symbol -> (draft that flows to it, symbol that loses this flow, or -1)
    came: dict[int, tuple[int, int]] = {}
    queue: deque[int] = deque()

    def visit(row: int, giver: int) -> None:
        for symbol in np.flatnonzero(holds[row]).tolist():
            if symbol not in came:
                came[symbol] = (row, giver)
                queue.append(symbol)

    for row in np.flatnonzero(left > SMALL).tolist():
        visit(row, -1)
    while queue:
        symbol = queue.popleft()
        if room[symbol] > SMALL:
            hops = [(came[symbol][0], symbol)]
            while (giver := came[hops[0][1]][1]) >= 0:
                hops.insert(0, (came[giver][0], giver))
            return hops
        for row in np.flatnonzero(flow[:, symbol] > SMALL).tolist():
            visit(row, symbol)
    return []
