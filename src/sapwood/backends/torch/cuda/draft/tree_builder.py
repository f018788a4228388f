"""Drafts whole EAGLE-3 trees on the device: new text, levels, pruning; one CUDA graph per shape.

A draft is an ordinary function over static buffers. What changes from round to round, lengths
included, reaches it in one small transfer, so that a captured draft is right for any text. It
builds the tree that policy `beam` builds step by step.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep, GraphMemory
from sapwood.backends.torch.cuda.draft.batch_draft import BATCHES, BatchDraft
from sapwood.backends.torch.cuda.draft.device_tree import (
    OPENED,
    ROWS,
    DeviceTree,
    FeatureRef,
    RoundBuffer,
    RoundUse,
    build_drafted,
    build_pruned,
)
from sapwood.backends.torch.cuda.draft.draft_buffers import (
    MAX_NEW_ROWS,
    DeviceTimer,
    DraftArgs,
    DraftBuffers,
    angles_of,
    kernels,
    listed,
)
from sapwood.backends.torch.cuda.draft.draft_steps import DraftSpace, DraftSteps
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes, describe, level_sizes
from sapwood.backends.torch.cuda.draft.feature_rows import PassFeatureRows
from sapwood.backends.torch.cuda.draft.head_kv_pool import HeadKvPool, HeadKvSequence
from sapwood.backends.torch.cuda.draft.head_prefill import read
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    LAST,
    NEW,
    NODES,
    ROOT_AT,
    ROOT_TOKEN,
    SEQUENCE,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.draft.warmup import prepare, prepare_batches
from sapwood.backends.torch.cuda.pass_inputs import step_up
from sapwood.backends.torch.cuda.prelaunch import PrelaunchedDraft
from sapwood.core.array_types import FloatArray
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Outcome, TreeShape
from sapwood.core.whole_tree import BatchShapes, NewText, TreeJob

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.network import CudaNetwork

POSITIONS = 8192  # for which rotary angles are made at first
TIMED = 8  # one draft in this many is timed


def do_nothing(*given: Any) -> None:
    """The default of `CudaTreeBuilder.on_prepared` and `on_batches_prepared`."""


class CudaTreeBuilder:
    """Drafts trees with one EAGLE-3 head on the device that holds it."""

    most_rows = MAX_NEW_ROWS
    accepts_seed = False

    def __init__(self, net: Any, embedding: Tensor) -> None:
        self.device = embedding.device
        self.layer = describe(net, embedding)
        self.vocab = len(self.layer.vocabulary)
        self.pool = HeadKvPool(self.layer)
        self.round_buffer = RoundBuffer(self.device)
        self.args = DraftArgs(self.device)
        self.ops = kernels(self.device)
        self.angles = angles_of(self.layer, POSITIONS)
        self.hidden_states = self.round_buffer.hidden_states = embedding.new_zeros(
            MAX_NEW_ROWS, self.layer.fuse.shape[1]
        )
        self.round_buffer.layers = tuple(net.config.features)
        self.buffers: DraftBuffers | None = None
        # by sizes, and True if it starts from a verdict on the device
        self.captured: dict[tuple[LevelSizes, bool], CapturedStep] = {}
        self.memory = GraphMemory()  # shared by all captured drafts
        self.version = 0  # of the pool when they were captured
        self.clock = DeviceTimer(self.device)
        self.draft_seconds: dict[LevelSizes, float] = {}  # by sizes, as last measured
        self.drafts = 0
        self.prelaunched: PrelaunchedDraft | None = None
        self.on_prepared: Callable[[], None] = do_nothing  # called when its drafts are captured
        # called with shapes of rounds and their requests when drafts of batches are captured
        self.on_batches_prepared: Callable[[Sequence[TreeShape], int], None] = do_nothing
        self.rounds: Any = None  # the `CudaRoundLauncher` of its backend
        self.batches: dict[int, BatchDraft] = {}  # by their number of requests

    def open(self, rows: int) -> HeadKvSequence:
        """A KV sequence for a request whose text has this many rows."""
        return HeadKvSequence(self.pool, rows)

    def level_sizes(self, shape: TreeShape) -> LevelSizes | None:
        """Sizes of the levels of such a tree; None if the buffers are too small for it."""
        sizes = level_sizes(shape.depth, shape.beam, min(shape.width, self.vocab))
        fits = (
            sizes.size <= CAPACITY
            and sizes.opened <= OPENED
            and shape.nodes < ROWS
            and sizes.beam <= ROWS
        )
        return sizes if fits else None

    def fits(self, shape: TreeShape) -> bool:
        """True when the buffers have room for trees of this shape."""
        return self.level_sizes(shape) is not None

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Capture drafts of these shapes ahead of the first request."""
        prepare(self, shapes)

    def build(
        self,
        root: int,
        shape: TreeShape,
        cache: HeadKvSequence,
        text: Callable[[], NewText],
        committed: int,
        source: int = 0,
        seed: Tree | None = None,
    ) -> Tree:
        """Run the new text, whose last token is the root, and draft a tree; a seed is not used."""
        features, tokens = text()
        return self.grow(cache, features, tokens, committed, shape, source)

    @cached_property
    def scratch(self) -> HeadKvSequence:
        """The KV sequence that places of a batch without a request write to."""
        return HeadKvSequence(self.pool, 0)

    def build_batch(self, jobs: Sequence[TreeJob]) -> list[Tree]:
        """Draft the trees of several requests together."""
        if len(jobs) > BATCHES[-1]:
            parts = jobs[: BATCHES[-1]], jobs[BATCHES[-1] :]
            return [tree for part in parts for tree in self.build_batch(part)]
        sizes = self.batch_sizes([job.shape for job in jobs])
        if sizes is None:
            raise ValueError("no draft has room for these trees together; draft them one by one")
        self.prelaunched = None
        self.make_room(
            max(job.cache.text for job in jobs) + MAX_NEW_ROWS + sizes.opened,
            max(job.committed for job in jobs) + max(sizes.depth, MAX_NEW_ROWS),
        )
        return self.batch(len(jobs)).draft(jobs, sizes)

    def batch_sizes(self, shapes: Sequence[TreeShape]) -> LevelSizes | None:
        """Sizes of the levels of the smallest tree that holds these shapes; None if too large."""
        deep, beam, width = (
            max(getattr(shape, name) for shape in shapes) for name in ("depth", "beam", "width")
        )
        most = max(shape.nodes for shape in shapes)
        return self.level_sizes(TreeShape(most, deep, beam, width))

    def batch(self, requests: int) -> BatchDraft:
        """The draft for at least so many requests."""
        size = step_up(requests, BATCHES)
        if size not in self.batches:
            assert self.scratch.index >= 0  # takes its sequence before anything is captured
            self.batches[size] = BatchDraft(self, size)
        return self.batches[size]

    def prepare_batches(self, shapes: BatchShapes, requests: int) -> None:
        """Capture drafts of these shapes for up to so many requests, ahead of the first one."""
        prepare_batches(self, shapes, requests)

    def grow(
        self,
        sequence: HeadKvSequence,
        features: Tensor | FeatureRef,
        tokens: Sequence[int],
        committed: int,
        shape: TreeShape,
        source: int = 0,
    ) -> Tree:
        """Draft a tree behind new text: features [rows, width] and the token after each row.

        The last token is the root.
        """
        sizes = self.level_sizes(shape)
        prelaunched = self.prelaunched
        assert sizes is not None
        assert 0 < len(tokens) <= MAX_NEW_ROWS
        nodes = min(shape.nodes, sizes.size - 1)
        lines = shape.lines(source)
        self.prelaunched = None
        started = prelaunched is not None and prelaunched.started_from(
            self.round_buffer, features, tokens, committed
        )
        if (
            prelaunched is not None
            and started
            and prelaunched.matches(sequence, sizes, nodes, lines)
        ):
            self.round_buffer.features = None
            prelaunched_pass = prelaunched.prelaunched_pass
            timer: Callable[[], float] = partial(float, prelaunched.seconds_left(self.round_buffer))
        else:
            prelaunched_pass = None
            self._prepare(sequence, sizes, committed)
            self._place(features)
            self._write_args(sequence, tokens, committed, nodes, lines)
            self.args.send()
            self.args.record_sent()
            timer = self._run(sizes)
        sequence.text += len(tokens)
        return self._trees(sizes, nodes, source, timer, prelaunched_pass)

    def read(
        self, cache: HeadKvSequence, features: Tensor, tokens: Sequence[int], first: int
    ) -> None:
        """Prefill the beginning of a text too long for a draft; its first position is `first`."""
        self.make_room(cache.text + len(tokens), first + len(tokens))
        read(self.ops, self.layer, self.angles, cache, features.contiguous(), tokens, first)

    def prelaunch(
        self, shape: TreeShape, tree: Tree, cache: HeadKvSequence, committed: int, source: int = 0
    ) -> PrelaunchedDraft | None:
        """Prepare the next draft behind this tree's verification; None if that needs the host."""
        sizes = self.level_sizes(shape)
        if sizes is None or not self._ready(sizes) or not self._holds(tree):
            return None
        nodes = min(shape.nodes, sizes.size - 1)
        lines = shape.lines(source)
        self._prepare(cache, sizes, committed + MAX_NEW_ROWS)
        if not self._ready(sizes):  # the buffers were replaced
            return None
        runner = self.round_buffer.runner
        first_slot = None if runner is None else runner.first_slot(nodes + 1, sizes.depth)
        # transferred by the captured draft itself
        self._write_args(cache, (0,), committed, nodes, lines, first_slot or 0)
        self.prelaunched = PrelaunchedDraft(
            builder=self,
            sequence=cache,
            text=cache.text,
            committed=committed,
            sizes=sizes,
            nodes=nodes,
            lines=lines,
            stamp=self.round_buffer.stamp,
            seconds=self.draft_seconds[sizes],
            runner=None if first_slot is None else runner,
        )
        return self.prelaunched

    def _holds(self, tree: Tree) -> bool:
        """True when the tree is the last one that was drafted into this round buffer."""
        return (
            isinstance(tree, DeviceTree)
            and tree.round_use.round_buffer is self.round_buffer
            and tree.round_use.live
        )

    @torch.inference_mode()
    def launch(self, sizes: LevelSizes) -> None:
        """Launch a draft that starts from the result of the verification."""
        self.step(sizes, follows=True)()
        self.args.record_sent()
        self.drafts += 1

    def pass_args_writer(self, network: "CudaNetwork") -> Callable[[], None]:
        """A function that writes the arguments of the pass over the drafted tree on the device."""
        return partial(
            self.ops.write_pass_args,
            self.round_buffer,
            self.args.scalars,
            network.pass_args.on_device,
        )

    def _ready(self, sizes: LevelSizes) -> bool:
        """True when such a draft is captured and its seconds are known."""
        step = self.captured.get((sizes, False))
        return (
            sizes in self.draft_seconds
            and self.version == self.pool.version
            and step is not None
            and step.steady
        )

    def _prepare(self, sequence: HeadKvSequence, sizes: LevelSizes, committed: int) -> None:
        """Make room for a draft whose root is at position `committed` at most."""
        self.make_room(sequence.text + MAX_NEW_ROWS + sizes.opened, committed + sizes.depth)
        self._ensure_buffers(sizes)

    def path_features(self, outcome: Outcome) -> FeatureRef | PassFeatureRows | None:
        """Features of the accepted path, if the verification left them for the next draft."""
        tree = outcome.tree
        shared = outcome.scores.shared_features(self.round_buffer.layers)
        if shared is not None:
            states, first = shared
            return PassFeatureRows(states, [first + node for node in outcome.verdict.path])
        if not isinstance(tree, DeviceTree) or tree.round_use.round_buffer is not self.round_buffer:
            return None
        return (
            tree.round_use.path_features() if tree.round_use.path == outcome.verdict.path else None
        )

    @torch.inference_mode()
    def _place(self, features: Tensor | FeatureRef) -> None:
        """Copy features to where the draft reads them, unless they are there."""
        if not isinstance(features, FeatureRef) or not features.in_place:
            self.round_buffer.release_features()
            given = features if isinstance(features, Tensor) else features.tensor()
            self.hidden_states[: len(given)] = given
        self.round_buffer.features = None

    @torch.inference_mode()
    def _run(self, sizes: LevelSizes) -> Callable[[], float]:
        """Run a draft; a function that returns its seconds once the device has finished it."""
        step = self.step(sizes)
        self.drafts = self.drafts + 1
        if sizes in self.draft_seconds and self.drafts % TIMED:
            step()
            return partial(self.draft_seconds.__getitem__, sizes)
        ready = step.steady
        self.clock.start()
        step()
        self.clock.stop()
        return partial(self._timed, sizes, ready)

    def _timed(self, sizes: LevelSizes, ready: bool) -> float:
        """Seconds of the draft that was timed last; stored if it captured nothing."""
        seconds = self.clock.seconds()
        if ready:
            self.draft_seconds[sizes] = seconds
        return seconds

    def make_room(self, rows: int, positions: int) -> None:
        """Make room for this many rows in every sequence, and rotary angles of the positions."""
        if rows > self.pool.keys.shape[2]:
            self.pool.make_room(rows)
        if positions > self.angles.shape[0]:
            self.angles = angles_of(self.layer, 2 * positions)
            self.captured.clear()

    def _write_args(
        self,
        sequence: HeadKvSequence,
        tokens: Sequence[int],
        committed: int,
        nodes: int,
        lines: FloatArray | None,
        first_slot: int = 0,  # of the target's KV sequence, if a pass is prelaunched
    ) -> None:
        new = len(tokens)
        scalars = {NEW: new, ROOT_AT: committed, TEXT_ROWS: sequence.text, SEQUENCE: sequence.index}
        scalars |= {NODES: nodes, LAST: new - 1, ROOT_TOKEN: tokens[-1], FIRST_SLOT: first_slot}
        self.args.write(listed(scalars, tokens), lines)

    def _ensure_buffers(self, sizes: LevelSizes) -> DraftBuffers:
        rows = max(MAX_NEW_ROWS, sizes.beam)
        if self.buffers is None or self.buffers.x.shape[0] < rows:
            self.captured.clear()
            self.buffers = DraftBuffers(self.layer, rows, OPENED)
        return self.buffers

    def step(self, sizes: LevelSizes, *, follows: bool = False) -> CapturedStep:
        """The captured draft of these sizes; `follows`: it starts from a verdict on the device."""
        if self.version != self.pool.version:
            self.captured.clear()
            self.version = self.pool.version
        name = sizes, follows
        if name not in self.captured:
            depths, ranks = (
                torch.from_numpy(column).to(self.device) for column in (sizes.depths, sizes.ranks)
            )
            body = partial(self.body_after_verdict if follows else self.body, sizes, depths, ranks)
            known = follows or sizes in self.draft_seconds  # then all its kernels are loaded
            self.captured[name] = CapturedStep(body, self.device, self.memory, ready=known)
        return self.captured[name]

    # --------------------------------------------------------------------------- captured steps
    def body_after_verdict(self, sizes: LevelSizes, depths: Tensor, ranks: Tensor) -> None:
        """One draft whose new text is the accepted path of a verdict on the device."""
        self.args.send()
        self.ops.complete_draft_args(self.round_buffer, self.args.scalars, self.args.tokens)
        self.body(sizes, depths, ranks)

    def body(self, sizes: LevelSizes, depths: Tensor, ranks: Tensor) -> None:
        """One draft; depths and ranks [size] are those of the drafted nodes."""
        assert self.buffers is not None
        args = self.args
        space = DraftSpace(
            self.hidden_states,
            self.buffers,
            args.scalars,
            args.tokens,
            args.scalars[LAST : LAST + 1],
            args.table,
            self.round_buffer,
        )
        steps = self.steps(space)
        steps.text()
        steps.tree(sizes, depths, ranks)

    def steps(self, space: DraftSpace) -> DraftSteps:
        """The steps of a draft in these buffers."""
        return DraftSteps(self.layer, self.ops, self.angles, self.pool, space)

    # ---------------------------------------------------------------------------------- result
    def _trees(
        self,
        sizes: LevelSizes,
        nodes: int,
        source: int,
        timer: Callable[[], float],
        prelaunched_pass: Any,
    ) -> Tree:
        """The drafted tree with its pruned tree; both are still on the device."""
        round_use = RoundUse.begin(self.round_buffer, sizes.depth)
        mark = 1 << source
        round_use.prelaunched_pass = prelaunched_pass
        drafted = DeviceTree(round_use, sizes.size, partial(build_drafted, sizes, mark))
        drafted.pruned = pruned = DeviceTree(
            round_use, nodes + 1, partial(build_pruned, sizes, nodes + 1, mark)
        )
        pruned.draft_timer = timer
        return drafted
