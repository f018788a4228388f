"""The next draft, and the target's pass over its tree, launched before the host has the verdict.

Tokens and length of the new text and the accepted nodes follow from the verdict, which the device
knows first. So verification, draft and pass are launched at once, and the host commits and observes
while they run. If the next round asks for another draft, the result is discarded and the tree is
drafted again. A discarded pass has moved the accepted path to its final slots, which is needed
anyway, and changed nothing else.
"""

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, FeatureRef, RoundBuffer, RoundUse
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvSequence
from sapwood.backends.torch.cuda.kv_pool import CHUNK
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.core.array_types import FloatArray

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
    from sapwood.backends.torch.cuda.network import CudaNetwork


@dataclass(slots=True)
class PrelaunchedDraft:
    """A draft that is ready to be launched, or was launched, with the arguments it was made for."""

    builder: "CudaTreeBuilder"
    sequence: HeadKvSequence
    text: int  # rows of the sequence's text before the verdict
    committed: int  # position of the root before it
    sizes: LevelSizes
    nodes: int
    lines: FloatArray | None
    stamp: int  # of the round whose verdict it follows
    seconds: float  # expected time on the device
    runner: "PassRunner | None"  # launches the pass over the tree, if that is possible
    launched: bool = False
    prelaunched_pass: "PrelaunchedPass | None" = None  # the pass over its tree

    def launch_draft(self) -> None:
        """Launch it behind the verification."""
        self.builder.launch(self.sizes)
        self.launched = True

    def launch_pass(self) -> None:
        """Launch the pass over its tree behind it, if there is a runner."""
        if self.runner is not None and self.launched:
            write_args = self.builder.pass_args_writer(self.runner.network)
            self.prelaunched_pass = self.runner.prelaunch(
                self.builder.round_buffer, self.nodes + 1, write_args
            )

    def started_from(
        self,
        round_buffer: RoundBuffer,
        features: Tensor | FeatureRef,
        tokens: Sequence[int],
        committed: int,
    ) -> bool:
        """True when it was launched and the accepted text is this one."""
        known = (
            isinstance(features, FeatureRef)
            and features.in_place
            and features.round_buffer is round_buffer
        )
        counted = (
            len(tokens) <= MAX_NEW_ROWS
            and committed == self.committed + len(tokens)
            and self.sequence.text == self.text
        )
        return (
            self.launched
            and known
            and counted
            and self.stamp == round_buffer.stamp
            and tokens[-1] == int(round_buffer.host_array[1])
        )

    def matches(
        self, sequence: HeadKvSequence, sizes: LevelSizes, nodes: int, lines: FloatArray | None
    ) -> bool:
        """True when it drafts the requested tree."""
        same = lines is self.lines or (lines is not None and np.array_equal(lines, self.lines))  # type: ignore[arg-type]
        return same and (sequence, sizes, nodes) == (self.sequence, self.sizes, self.nodes)

    def seconds_left(self, round_buffer: RoundBuffer) -> float:
        """Estimated seconds until the device has finished it."""
        return max(self.seconds - (time.perf_counter() - round_buffer.verified_at), 0.0)


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
