"""Drafts the trees of several requests at once: each step of the head runs over rows of all.

A draft is captured for one of a few numbers of requests. Places without a request are padding:
they write to a scratch sequence, and nothing reads their trees. A request has the tree that it
would have alone, bit for bit.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.backends.torch.cuda.draft.batch_buffers import (
    BatchArgs,
    DraftedTree,
    PrunedTree,
    ResultLayout,
    ResultTransfer,
    TreeMarks,
)
from sapwood.backends.torch.cuda.draft.device_tree import OPENED, ROWS, RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS, DraftBuffers
from sapwood.backends.torch.cuda.draft.draft_steps import DraftSpace
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.backends.torch.cuda.draft.feature_rows import FeatureIndex
from sapwood.backends.torch.cuda.draft.reference import SCALARS
from sapwood.backends.torch.cuda.pass_inputs import step_up
from sapwood.core.array_types import FloatArray
from sapwood.core.tree import Tree
from sapwood.core.types import TreeShape
from sapwood.core.whole_tree import TreeJob

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)  # requests of a captured draft
TEXT_ROWS = (4, MAX_NEW_ROWS)  # of new text, for each request
KEPT = (8, 16, 32, 64, ROWS)  # most rows of a pruned tree in a transfer
TIMES = 2  # run eagerly, then captured


@cache
def layout_of(sizes: LevelSizes, kept: int) -> ResultLayout:
    """The cached layout of results of these sizes."""
    return ResultLayout(sizes, kept)


class BatchDraft:
    """Drafts for up to `requests` requests, in static buffers of its own."""

    def __init__(self, builder: "CudaTreeBuilder", requests: int) -> None:
        self.builder = builder
        self.requests = requests
        device = builder.device
        self.fields = RoundFields.make(device, requests)
        self.args = BatchArgs(device, requests)
        self.transfer = ResultTransfer(self.fields)
        self.hidden_states = builder.hidden_states.new_zeros(
            requests * MAX_NEW_ROWS, builder.hidden_states.shape[1]
        )
        self.buffers = self._buffers(MAX_NEW_ROWS)
        self.columns: dict[LevelSizes, tuple[Tensor, Tensor]] = {}  # depths and ranks of all nodes
        self.version = 0  # how often `buffers` were replaced
        self.captured: dict[LevelSizes | int, CapturedStep] = {}  # by sizes; texts by rows
        self.made_for: tuple[int, int] = 0, 0  # see `_step`

    def _buffers(self, rows: int) -> DraftBuffers:
        requests = self.requests
        return DraftBuffers(self.builder.layer, requests * rows, OPENED, requests)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[TreeJob], sizes: LevelSizes) -> list[Tree]:
        """Draft the trees of these requests; they come to the host together."""
        index = FeatureIndex()
        texts = [index.add(job) for job in jobs]
        rows = step_up(max(len(tokens) for tokens, _ in texts), TEXT_ROWS)
        ends = {depth: sizes.first(depth + 1) for depth in {job.shape.depth for job in jobs}}
        marks = [tree_marks(job.shape, ends[job.shape.depth], job.source) for job in jobs]
        tables: list[FloatArray] = []
        self.args.begin()
        self.args.write(
            [
                scalars_of(job, tokens, mark, tables)
                for job, (tokens, _), mark in zip(jobs, texts, marks, strict=True)
            ],
            [tokens for tokens, _ in texts],
            [places for _, places in texts],
            rows,
            self.padding(),
        )
        for number, lines in enumerate(tables, 1):
            self.args.host_table[number] = lines
        self.args.send(len(tables))
        end = self.requests * rows
        index.gather(self.args.places[:end], self.hidden_states[:end])
        self.run(sizes, rows)
        layout = layout_of(sizes, step_up(max(mark.nodes for mark in marks), KEPT))
        result = self.transfer.send(layout, marks)
        trees: list[Tree] = []
        for number, (job, (tokens, _), mark) in enumerate(zip(jobs, texts, marks, strict=True)):
            job.cache.text += len(tokens)
            job.unread.clear()
            tree = DraftedTree(result, number, mark.size)
            tree.pruned = PrunedTree(result, number, mark.nodes)
            trees.append(tree)
        return trees

    def padding(self) -> list[int]:
        """Scalars of a place without a request: one row of text in the scratch sequence."""
        scalars = [0] * SCALARS
        scalars[:4] = 1, 1, 0, self.builder.scratch.index
        return scalars

    def run(self, sizes: LevelSizes, rows: int) -> None:
        """Run the captured steps of a draft with so many rows of new text for each request."""
        self.ensure_buffers(sizes)
        self._step(rows, partial(self._text, rows))()
        self._step(sizes, partial(self._tree, sizes))()

    def ensure_buffers(self, sizes: LevelSizes) -> None:
        """Make room for trees of these sizes."""
        if self.buffers.x.shape[0] < self.requests * sizes.beam:
            self.captured.clear()
            self.version += 1
            self.buffers = self._buffers(sizes.beam)

    def steps(self, sizes: LevelSizes, rows: int) -> None:
        """The steps of a draft, as a part of a captured one."""
        self._text(rows)
        self._tree(sizes)

    def capture(self, sizes: LevelSizes, rows: int) -> None:
        """Capture a draft without requests."""
        self.args.begin()
        self.args.write([], [], [], rows, self.padding())
        self.args.send()
        for _ in range(TIMES):
            self.run(sizes, rows)

    def _step(self, name: LevelSizes | int, body: Callable[[], None]) -> CapturedStep:
        """The captured step of this name; all are void when the builder's tensors were replaced."""
        builder = self.builder
        present = builder.pool.version, len(builder.angles)
        if present != self.made_for:
            self.captured.clear()
            self.made_for = present
        if name not in self.captured:
            self.captured[name] = CapturedStep(body, builder.device, builder.memory)
        return self.captured[name]

    def _space(self, rows: int) -> DraftSpace:
        args = self.args
        end = self.requests * rows
        return DraftSpace(
            self.hidden_states[:end],
            self.buffers,
            args.scalars,
            args.tokens[:end],
            args.roots,
            args.table,
            self.fields,
        )

    def _text(self, rows: int) -> None:
        self.builder.steps(self._space(rows)).text()

    def _tree(self, sizes: LevelSizes) -> None:
        if sizes not in self.columns:
            device = self.builder.device
            self.columns[sizes] = (
                torch.from_numpy(sizes.depths).to(device),
                torch.from_numpy(sizes.ranks).to(device),
            )
        self.builder.steps(self._space(MAX_NEW_ROWS)).tree(sizes, *self.columns[sizes])


def tree_marks(shape: TreeShape, size: int, source: int) -> TreeMarks:
    """The marks of a tree, whose drafted nodes are so many."""
    return TreeMarks(shape.depth, size, min(shape.nodes + 1, size), 1 << source)


def scalars_of(
    job: TreeJob,
    tokens: Sequence[int],  # of its new text, the root last
    mark: TreeMarks,
    tables: list[FloatArray],  # of all requests; its own is added if it has one
) -> list[int]:
    """Scalars of one request, in the order of their indices."""
    lines = job.shape.lines(job.source)
    table = 0
    if lines is not None:
        known = (place for place, other in enumerate(tables, 1) if other is lines)
        table = next(known, len(tables) + 1)
        if table > len(tables):
            tables.append(lines)
    new, cache = len(tokens), job.cache
    first_slot = 0  # no pass is prelaunched
    return [
        new, job.committed, cache.text, cache.index, mark.nodes - 1, new - 1, tokens[-1],
        first_slot, table, mark.size,
    ]  # fmt: skip
