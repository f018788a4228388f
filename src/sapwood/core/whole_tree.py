"""Protocols of whole-tree drafting: trees that a device or compiled code builds in one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome, TreeShape


class DraftLaunch(Protocol):
    """The next round's draft, to be launched on a device behind the verification of this one."""

    @property
    def seconds(self) -> float:
        """Seconds that the device takes for the draft."""

    def launch_draft(self) -> None:
        """Launch the draft; it starts from the verification's result on the device."""

    def launch_pass(self) -> None:
        """Launch the target's pass over the drafted tree, if the backend can."""


@runtime_checkable
class WholeTreeDrafter(Protocol):
    """A drafter that can draft a whole tree in one call."""

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """A tree of this shape, grown from a seed if given; None when it must go level by level."""

    def accepts_seed(self) -> bool:
        """True when a tree may start from other drafters' nodes."""
        return False

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Prepare a device for trees of these shapes, before any request."""
        return

    def prelaunch(self, shape: TreeShape, tree: Tree) -> DraftLaunch | None:
        """Prepare the next draft behind the verification of this tree; None if it is impossible."""
        return None


@runtime_checkable
class LookupDrafter(Protocol):
    """A drafter that uses earlier text only, so that it may observe rounds late."""

    def catch_up(self) -> None:
        """Index the text so far, if that was not done."""

    def append(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens; to index them can wait."""

    def matches_text(self) -> bool:
        """True when the end of the text matches earlier text at some length."""

    def likely_path(self, root: int, longest: int) -> Tree:
        """The likeliest continuation as one path, for as long as it is likely."""

    def lookup_seed(self, root: int, width: int, longest: int) -> Tree:
        """The likeliest continuations, as a seed for another drafter's tree."""


class FeatureSource(Protocol):
    """The target's hidden states of some positions, gathered when a head needs them."""

    def tensor(self) -> Any:
        """The features as one tensor, [rows, features]."""


class HeadCache(Protocol):
    """Keys, values and outputs of a head's rows for one request, those of the text first."""

    text: int  # rows of the text
    outputs: Any  # [rows, width] of the rows of a tree, the root's first

    @property
    def keys(self) -> Any:
        """Keys of the rows, [1, heads, slots, width]."""

    @property
    def values(self) -> Any:
        """Values of the rows."""

    def write(self, key: Any, value: Any, start: int) -> None:
        """Write rows from slot `start` on."""

    def take(self, rows: list[int]) -> Any:
        """Outputs of these rows of the tree, [rows, width]."""

    def close(self) -> None:
        """Free the rows."""


# features [rows, width] of new text, and the token after each, the root last
NewText = tuple[Any, Sequence[int]]


class TreeBuilder(Protocol):
    """Builds whole trees of one trained head, without the host between levels."""

    @property
    def most_rows(self) -> int:
        """Most rows of new text that one build can take."""

    @property
    def accepts_seed(self) -> bool:
        """True when a tree may start from other drafters' nodes."""

    def open(self, rows: int) -> Any:
        """A cache for a request whose text has so many rows; a `HeadCache`."""

    def fits(self, shape: TreeShape) -> bool:
        """True when it can build trees of this shape."""

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Prepare for trees of these shapes in advance, so that no request waits for it."""

    def read(self, cache: Any, features: Any, tokens: Sequence[int], first: int) -> None:
        """Prefill text that is too long for one build; its first row is at position `first`."""

    def build(
        self,
        root: int,
        shape: TreeShape,
        cache: Any,
        text: Callable[[], NewText],  # called at most once, and only if the head has to run
        committed: int,  # position of the root
        source: int = 0,
        seed: Tree | None = None,
    ) -> Tree:
        """Run the head over the new text and build the tree that follows it."""

    def prelaunch(
        self, shape: TreeShape, tree: Tree, cache: Any, committed: int, source: int = 0
    ) -> DraftLaunch | None:
        """Prepare the next tree behind the verification of this one; None if it is impossible."""

    def path_features(self, outcome: Outcome) -> FeatureSource | None:
        """Features of the accepted path, as kept by the verification; None if it kept none."""


@runtime_checkable
class BatchTreeBuilder(TreeBuilder, Protocol):
    """A builder that can build the trees of several requests together."""

    def build_batch(self, jobs: Sequence["TreeJob"]) -> list[Tree]:
        """Build the trees of all jobs, in their order; if it raises, no job was begun."""

    def prepare_batches(self, shapes: "BatchShapes", requests: int) -> None:
        """Prepare for trees of these shapes of up to so many requests at a time."""


class BatchShapes(NamedTuple):
    """Shapes of the trees that several requests share a pass with."""

    drafts: Sequence[TreeShape]  # drafted alone; the host sees them before the pass
    rounds: Sequence[TreeShape]  # of whole rounds on the device


@dataclass(slots=True)
class TreeJob:
    """A tree of one request that a builder may build together with those of others."""

    builder: BatchTreeBuilder
    cache: Any  # of the request, opened by the builder
    # features of new text and the token after each row, the root last; emptied once built
    unread: list[tuple[Any, Sequence[int]]]
    committed: int  # position of the root
    shape: TreeShape
    source: int


@runtime_checkable
class BatchDrafter(Protocol):
    """A drafter of whole trees that can be drafted together with those of other requests."""

    def tree_job(self, root: int, shape: TreeShape) -> TreeJob | Tree | None:
        """The tree to be built, or one that needs no building; None: by `draft_tree` alone."""

    def prepare_batches(self, shapes: "BatchShapes", requests: int) -> None:
        """Prepare a device for trees of these shapes of up to so many requests at a time."""


@runtime_checkable
class RoundDrafter(Protocol):
    """A drafter whose rounds a device can run by itself, from draft to commit."""

    def joins_rounds(self) -> bool:
        """True when the rounds of the present request can run so."""

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        """Its next tree and the text that was not read yet; None if there is no text."""

    def observe_rounds(self, tokens: Sequence[int], last: Outcome | None) -> None:
        """Take the tokens of such rounds; `last` is the last of them, None while they go on."""


@runtime_checkable
class WholeTreePolicy(Protocol):
    """A policy that knows a tree's shape before it is grown."""

    def tree_shape(self, budget: Budget) -> TreeShape | None:
        """Shape of the next tree, for a whole-tree drafter; None when it must go level by level."""

    def tree_shapes(self, budget: Budget) -> list[TreeShape]:
        """All shapes that it may use within this budget, but for their size."""
        return []


@runtime_checkable
class RoundPolicy(Protocol):
    """A policy that knows what trees of a batch bring, by their size and depth."""

    def round_gain(self, nodes: int, depth: int) -> float | None:
        """Tokens expected of such trees; None before the first was seen."""


_OFFERED: dict[tuple[type, type], bool] = {}


def _offers(part: object, protocol: Any) -> bool:
    """True when a part's class has all members of a protocol; cached by class.

    Python's own check looks at every member of the protocol, which takes tens of microseconds.
    """
    key = type(part), protocol
    found = _OFFERED.get(key)
    if found is None:
        found = _OFFERED[key] = isinstance(part, protocol)
    return found


def drafts_whole_trees(part: object) -> "TypeGuard[WholeTreeDrafter]":
    """True for a drafter that can build a whole tree in one call."""
    return _offers(part, WholeTreeDrafter)


def drafts_batches(part: object) -> "TypeGuard[BatchDrafter]":
    """True for a drafter whose trees can be drafted together with those of other requests."""
    return _offers(part, BatchDrafter)


def drafts_rounds(part: object) -> "TypeGuard[RoundDrafter]":
    """True for a drafter whose rounds a device may run by itself."""
    return _offers(part, RoundDrafter)


def knows_rounds(part: object) -> "TypeGuard[RoundPolicy]":
    """True for a policy that knows what trees of a batch bring."""
    return _offers(part, RoundPolicy)


def builds_batches(builder: object) -> "TypeGuard[BatchTreeBuilder]":
    """True for a builder that can build the trees of several requests together."""
    return _offers(builder, BatchTreeBuilder)


def looks_up(part: object) -> "TypeGuard[LookupDrafter]":
    """True for a drafter that looks continuations up."""
    return _offers(part, LookupDrafter)


def shapes_whole_trees(part: object) -> "TypeGuard[WholeTreePolicy]":
    """True for a policy that can shape a tree before it is grown."""
    return _offers(part, WholeTreePolicy)
