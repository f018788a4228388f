"""The next target pass, launched behind its draft before the host has read the verification.

The length of the text and the accepted nodes follow from the verdict, which the device knows first.
So verification, draft and pass are launched at once, and the host commits and observes while they
run. If the next round asks for another tree, the result is discarded: the pass has moved the
accepted path to its final slots, which is needed anyway, and changed nothing else.
"""

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, RoundBuffer, RoundUse
from sapwood.backends.torch.cuda.kv_pool import CHUNK
from sapwood.backends.torch.cuda.session import CudaSession

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.network import CudaNetwork


@dataclass(frozen=True, slots=True, eq=False)
class PrelaunchedPass:
    """A pass that was launched ahead."""

    nodes: int
    watched: frozenset[int]
    number: int  # count of passes of the network after its launch
    buffer_index: int  # which of the network's buffers hold its result

    def matches(
        self, round_use: RoundUse, nodes: int, watched: Collection[int], network: "CudaNetwork"
    ) -> bool:
        """True when it is the pass over the tree of this round, and no other pass ran after it."""
        same = (
            round_use.prelaunched_pass is self
            and nodes == self.nodes
            and frozenset(watched) == self.watched
        )
        return same and network.count == self.number


class PassRunner:
    """Ran the last tree of a round buffer, and can prelaunch the pass over the next one."""

    def __init__(self, backend: Any, session: CudaSession, round_use: RoundUse) -> None:
        self.backend = weakref.ref(backend)
        self.network = backend.fused
        self.session = weakref.ref(session)
        self.length = session.length
        self.round_use = round_use
        self.stop = (
            session.length + round_use.depth + 1
        )  # largest possible position of the next root

    def first_slot(self, nodes: int, depth: int) -> int | None:
        """First slot of the KV sequence if such a tree's pass can be prelaunched, else None."""
        backend = self.backend()
        session = self.session()
        if backend is None or session is None or session.closed or session.length != self.length:
            return None
        fits = (
            self.stop + depth + 1 <= backend.info.context
            and self.stop + nodes <= self.network.pool.slots
        )
        small = nodes <= ROWS and self.round_use.depth < CHUNK
        path = self.round_use.round_buffer.path
        able = fits and small and self.network.is_frequent(nodes, self.stop, path)
        return session.sequence.first if able else None

    @torch.inference_mode()
    def prelaunch(
        self, round_buffer: RoundBuffer, nodes: int, write_args: Callable[[], None]
    ) -> PrelaunchedPass | None:
        """Launch the pass; `write_args` writes its arguments on the device."""
        backend = self.backend()
        session = self.session()
        if backend is None or session is None:
            return None
        buffer_index = self.network.prelaunch(
            round_buffer.rows, round_buffer.path, nodes, self.stop, write_args
        )
        session.prelaunched_pass = prelaunched_pass = PrelaunchedPass(
            nodes, frozenset(backend._watched), self.network.count, buffer_index
        )
        return prelaunched_pass
