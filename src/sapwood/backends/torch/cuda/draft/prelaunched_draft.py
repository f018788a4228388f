"""The next draft, launched behind the verification before the host has read its result.

The new text's tokens, their number and the position of the root follow from the verification on the
device. So the draft can be launched behind it, and the host commits and observes while it runs. If
the next round asks for another draft, the result is discarded and the tree is drafted again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import FeatureRef, RoundBuffer
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvSequence
from sapwood.core.array_types import FloatArray

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
    from sapwood.backends.torch.cuda.prelaunched_pass import PassRunner, PrelaunchedPass


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
