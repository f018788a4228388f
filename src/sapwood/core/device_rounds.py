"""Rounds of several requests that a device runs by itself: draft, pass, verification, commit.

The verdict of a round is all that the next one needs, and the device has it first. So the next
round is launched before the host has read the last one, which then makes text of it while the
device works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sapwood.core.types import TreeShape, Verdict
from sapwood.core.whole_tree import TreeJob

if TYPE_CHECKING:
    from sapwood.core.protocols import PrefillChunk, Session, TargetOutput
    from sapwood.core.tree import Tree

WIDEST = 10  # expanded nodes of a level, and children of each
# nodes of trees, with the root as many rows as passes have; depths of trees: both are few, as a
# device prepares for each
SIZES = (1, 3, 7, 15, 31, 63)
DEPTHS = (1, 2, 3, 4, 6)


def round_shapes() -> list[TreeShape]:
    """All shapes of trees of batches."""
    return [round_shape(nodes, depth) for nodes in SIZES for depth in DEPTHS if depth <= nodes]


def round_shape(nodes: int, depth: int) -> TreeShape:
    """The shape of trees of a batch: levels are no wider than so few nodes can use.

    A row of a level costs as much for every request, so narrow levels pay where many share a draft.
    """
    return TreeShape(nodes, depth, min(WIDEST, nodes // 2 + 1), min(WIDEST, nodes + 1))


class RoundRequest(NamedTuple):
    """One request of a round."""

    session: "Session"
    job: TreeJob  # its tree; the text in it is read when it joins
    before: int  # its index in the round launched before; -1: it joins
    temperature: float  # 0 takes the best token
    seed: int  # of its keyed noise


@dataclass(slots=True)
class RoundBatch:
    """The requests of a round, and the shape that the trees of all have."""

    shape: TreeShape
    requests: list[RoundRequest] = field(default_factory=list)
    learn: int = -1  # index of the request whose drafted tree comes to the host; -1: none


class RoundResult(NamedTuple):
    """The verified tree of one request."""

    context: int  # committed tokens before the round
    tree: "Tree"  # as pruned
    verdict: Verdict


class LaunchedRound(Protocol):
    """A launched round; its accepted paths are committed when it is read."""

    @property
    def draft_seconds(self) -> float:
        """Seconds that the device takes to draft the trees of all requests."""

    def read(self) -> Sequence[RoundResult]:
        """Wait for the round; the result of each request, in order."""

    def drafted(self) -> "Tree":
        """The tree of the request to learn from as it was drafted, with its `pruned` tree."""

    def output(self, index: int) -> "TargetOutput":
        """Hidden states of a request's accepted path, until the next round is launched."""


class RoundLauncher(Protocol):
    """Launches rounds on a device."""

    def fits(self, batch: RoundBatch) -> bool:
        """True when all buffers have room for this round, and nothing must be captured anew."""

    def seconds(self, shape: TreeShape, requests: int, longest: int) -> float | None:
        """Seconds of the device for a round of so many requests; None where they are unknown.

        `longest` is the length of the longest text.
        """

    def launch(self, batch: RoundBatch, chunks: "Sequence[PrefillChunk]" = ()) -> LaunchedRound:
        """Launch a round behind the one launched before, and chunks of prompts with it."""
