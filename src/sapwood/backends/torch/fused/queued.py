"""A pass that is on its way behind the growth of its tree, before the host knows what the tree grows from.

How long the text is then, and which nodes of the tree before it stay, follows from the verdict, which the
device knows first. So verdict, growth and pass are queued at once, and the host commits, learns and plans
while they run. If the next round asks for another tree, the pass has run in vain: it has put the accepted
path in its place, where it belongs, and nothing else that counts has changed.
"""

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sapwood.backends.torch.fused.network import Fused
from sapwood.backends.torch.fused.pool import CHUNK
from sapwood.backends.torch.fused.session import FusedSession
from sapwood.backends.torch.fused.tree import ROWS, Parcel, Round


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """A pass that was queued."""

    nodes: int
    watched: frozenset[int]
    number: int  # of the pass, as the network counts them
    desk: int  # where its answer will lie

    def answers(self, turn: Round, nodes: int, watched: Collection[int], network: Fused) -> bool:
        """True where it is the pass over the tree of this round, and none came after it."""
        same = turn.queued is self and nodes == self.nodes and frozenset(watched) == self.watched
        return same and network.count == self.number


class Runner:
    """Has run a tree of a parcel, and can queue the pass over the next one."""

    def __init__(self, backend: Any, session: FusedSession, turn: Round) -> None:
        self.backend, self.network = weakref.ref(backend), backend.fused
        self.session, self.length, self.turn = weakref.ref(session), session.length, turn
        self.stop = session.length + turn.depth + 1  # the next root lies there at most

    def home(self, nodes: int, depth: int) -> int | None:
        """First slot of the seat, where such a tree of so many nodes can be queued; None where it must be asked for."""
        backend, session = self.backend(), self.session()
        if backend is None or session is None or session.closed or session.length != self.length:
            return None
        fits = self.stop + depth + 1 <= backend.info.context and self.stop + nodes <= self.network.pool.slots
        near = any(0 < window <= depth for window in self.network.windows)
        small = nodes <= ROWS and self.turn.depth < CHUNK
        path = self.turn.parcel.path
        able = fits and small and not near and self.network.often(nodes, self.stop, path)
        return session.seat.first if able else None

    def queue(self, parcel: Parcel, nodes: int, tell: Callable[[], None]) -> Queued | None:
        """Queue the pass; `tell` writes what it must know, on the device."""
        backend, session = self.backend(), self.session()
        if backend is None or session is None:
            return None
        desk = self.network.queue(parcel.rows, parcel.path, nodes, self.stop, tell)
        session.queued = queued = Queued(nodes, frozenset(backend._watched), self.network.count, desk)
        return queued
