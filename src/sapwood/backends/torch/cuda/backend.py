"""Backend on a CUDA device: fused kernels, CUDA graphs, sessions in one KV pool."""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.architectures import describe, share_weights
from sapwood.backends.torch.backend import FOREIGN, TorchBackend, check_apart
from sapwood.backends.torch.cuda.draft.device_tree import ROWS, DeviceTree, to_device_tree
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.kernels.attention_tiles import WORD
from sapwood.backends.torch.cuda.kernels.weight_prefetch import in_order
from sapwood.backends.torch.cuda.kv_pool import KvSequence
from sapwood.backends.torch.cuda.mixed_pass import RootsAndPrompts, shape_of_rows
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.cuda.output import CudaOutput, PassFeatures
from sapwood.backends.torch.cuda.pass_buffers import PassResult, join
from sapwood.backends.torch.cuda.pass_inputs import (
    MAX_ROWS,
    RootRows,
    SingleTree,
    split_passes,
)
from sapwood.backends.torch.cuda.prelaunch import PassRunner, PrelaunchedPass
from sapwood.backends.torch.cuda.root_passes import CudaRoots, NextTokens
from sapwood.backends.torch.cuda.rounds.round_launcher import CudaRoundLauncher
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.backends.torch.cuda.tree_rows import ManyTrees, are_small
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.network import PassInput
from sapwood.core.protocols import Capabilities, KvMemory, PrefillChunk, TargetOutput, TreeInput
from sapwood.core.root_batch import RootBatch
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import TreeShape
from sapwood.core.whole_tree import TreeBuilder
from sapwood.errors import SapwoodError


class CudaBackend(TorchBackend):
    """Scores token trees with a model that our kernels run on a CUDA device."""

    def __init__(
        self,
        model: Any,
        name: str = "",
        slots: int = 0,
        found: LlamaModel | None = None,
        weights: str = "",  # number format of quantised ones in `found`
    ) -> None:
        found = found or describe(model)
        if found is None or found.cpu_only:
            raise SapwoodError(
                f"the CUDA kernels cannot run {name or type(model).__name__}; "
                "use the torch backend for it"
            )
        if not weights:
            found = in_order(found)
            share_weights(model, found)
        self.fused = CudaNetwork(found, slots, weights)
        super().__init__(model, name, self.fused)
        self.info = dataclasses.replace(self.info, name="fused")
        self._outputs: list[weakref.ref[CudaOutput]] = []  # of the last pass, in its buffers
        self._next_tokens = NextTokens(self.device)
        self._builders: list[weakref.ref[CudaTreeBuilder]] = []

    @property
    def capabilities(self) -> Capabilities:
        """The model itself, trees placed on the device, and plain torch for draft models."""
        return dataclasses.replace(
            super().capabilities,
            place_tree=self.place_tree,
            prepare_batches=self.prepare_batches,
            free_tokens=lambda: self.fused.pool.free_tokens,
            launch_roots=self.launch_roots,
            root_rows=MAX_ROWS,
            round_launcher=self.round_launcher,
        )

    @torch.inference_mode()
    def prepare_batches(self, requests: int, progress: Callable[[str], None]) -> None:
        """Capture the passes that this many requests may share."""
        if self.device.type == "cuda":
            from sapwood.backends.torch.cuda.batch_warmup import capture_batches

            self.detach_outputs()
            capture_batches(self.fused, self._watched, requests, progress)
            for held in self._builders:
                self._capture_trees(held, progress)

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> TreeBuilder | None:
        """A builder of whole trees of an EAGLE-3 head; its passes are captured with batches."""
        builder = super().tree_builder(head, embedding)
        if isinstance(builder, CudaTreeBuilder):
            held = weakref.ref(builder)
            self._builders = [one for one in self._builders if one() is not None] + [held]
            builder.on_prepared = partial(self._capture_trees, held)
            builder.on_batches_prepared = partial(self._capture_rounds, held)
            builder.rounds = builder.rounds or CudaRoundLauncher(self, builder)
        return builder

    def round_launcher(self, builder: TreeBuilder) -> CudaRoundLauncher | None:
        """The launcher of rounds that draft with this builder; None for those of other backends."""
        return builder.rounds if isinstance(builder, CudaTreeBuilder) else None

    @property
    def watched(self) -> frozenset[int]:
        """Layers whose inputs are kept for drafters."""
        return frozenset(self._watched)

    def _capture_rounds(
        self, held: "weakref.ref[CudaTreeBuilder]", shapes: Sequence[TreeShape], requests: int
    ) -> None:
        """Capture the rounds of a builder."""
        builder = held()
        if builder is not None and builder.rounds is not None:
            self.detach_outputs()
            builder.rounds.capture(shapes, requests, lambda _: None)

    def _capture_trees(
        self,
        held: "weakref.ref[CudaTreeBuilder]",
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Capture the passes over a builder's trees, unless a text is being decoded."""
        builder = held()
        if builder is not None and self.device.type == "cuda" and not self.fused.pool.used:
            from sapwood.backends.torch.cuda.batch_warmup import capture_tree_passes

            self.detach_outputs()
            capture_tree_passes(self.fused, builder, self._watched, progress)

    @torch.inference_mode()
    def launch_roots(self, batch: RootBatch, chunks: Sequence[PrefillChunk] = ()) -> CudaRoots:
        """Launch one pass over roots, which are committed, and chunks of prompts."""
        sessions = [self._own_session(session) for session in batch.sessions]
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._make_room_for_roots(sessions, chunks)
        self.detach_outputs()
        texts = [self._own(chunk) for chunk in chunks]
        for text, chunk in zip(texts, chunks, strict=True):
            text.extend(len(chunk.tokens))
        slots = self.fused.pool.slots
        firsts = np.array([session.sequence.index for session in sessions], np.int64) * slots
        lengths = np.array([session.place_root() for session in sessions], np.int64)
        roots = RootRows(np.array(batch.tokens, np.int64), firsts, lengths)
        count = len(sessions)
        if chunks:
            rows = with_prompts(roots, texts, chunks)
            result = self.fused.run_mixed(rows, rows.shape(self.fused.heads), self._watched, count)
            self.commit_chunks(result, count, chunks)
        else:
            result = self.fused.run_pass(roots, self._watched, head=True)
        assert result.logits is not None
        assert result.best is not None
        host, arrival = self._next_tokens.send(
            result.logits, result.best, batch.temperatures, batch.keys
        )
        kept = {layer: states[:count].clone() for layer, states in result.kept.items()}
        for session in sessions:  # last: a launch that fails has committed no root
            session.advance(1)
        return CudaRoots(host, arrival, PassFeatures(kept).joined)

    def _own_session(self, session: Any) -> CudaSession:
        """A session of this backend."""
        assert isinstance(session, CudaSession)
        return session

    def _make_room_for_roots(
        self, sessions: Sequence[CudaSession], chunks: Sequence[PrefillChunk]
    ) -> None:
        """Refuse a pass that has no room before anything changes."""
        rows = len(sessions) + sum(len(chunk.tokens) for chunk in chunks)
        if rows > MAX_ROWS:
            raise ValueError(f"a pass has at most {MAX_ROWS} rows, not {rows}")
        check_apart([*sessions, *(self._own(chunk) for chunk in chunks)])
        stops = [session.length + 1 for session in sessions]
        stops += [chunk.session.length + len(chunk.tokens) for chunk in chunks]
        self._check_room(max(stops))
        self.fused.pool.reserve(max(stops))

    def place_tree(self, tree: Tree) -> DeviceTree:
        """The same tree on the device, as if drafted there, so that timing has no transfer."""
        return to_device_tree(tree, self.device)

    @property
    def memory(self) -> KvMemory:
        """The KV pool: a text takes a whole sequence of slots."""
        return self.fused.pool

    def _session(self, tokens: Sequence[int], tenant: str) -> CudaSession:
        """An empty session in a new KV sequence: there is no prefix cache."""
        return CudaSession(KvSequence(self.fused.pool, self.fused.layout, len(tokens)))

    @torch.inference_mode()
    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Run one pass over all trees and chunks, if it has the rows; row i is node `since + i`."""
        sessions = [self._own(job) for job in work]
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        if chunks or not all(is_root(job) for job in work):
            self.make_room(work, chunks)
        rows = sum(len(job.tree) - job.since for job in work)
        in_buffers = True  # the result lies in the network's buffers
        if chunks and rows + sum(len(chunk.tokens) for chunk in chunks) <= MAX_ROWS:
            result: PassResult | None = self._mixed(sessions, work, chunks)
        else:
            if chunks:
                self.detach_outputs()  # their passes overwrite the buffers of the last pass
            for chunk in chunks:
                self._read(chunk)
            result = self._alone(sessions[0], work[0]) if len(work) == 1 else None
            if result is None and work and all(is_root(job) for job in work):
                result = self._roots(sessions, work)
            if result is None and len(work) > 1 and are_small(work):
                result = self._trees(sessions, work)
            if result is None and work:
                in_buffers = rows <= MAX_ROWS
                result = self._on_host(sessions, work)
        if result is None or not work:
            return []
        network = self.fused if in_buffers else None
        ends = list(itertools.accumulate(len(job.tree) - job.since for job in work))
        slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        features = PassFeatures(result.kept) if len(work) > 1 else None
        found = [
            CudaOutput(result, rows, session, network, features)
            for rows, session in zip(slices, sessions, strict=True)
        ]
        self._outputs = [weakref.ref(scores) for scores in found]
        return list(found)

    def make_room(self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk]) -> None:
        """Refuse a pass that has no room before anything changes; no tree is copied to the host."""
        jobs: list[TreeInput | PrefillChunk] = [*work, *chunks]
        rows = [len(job.tree) for job in work] + [len(chunk.tokens) for chunk in chunks]
        sessions = [self._own(job) for job in jobs]
        if len(sessions) > 1:
            check_apart(sessions)
        for chunk in chunks:
            self._check_room(chunk.session.length + len(chunk.tokens))
        stops = [session.length + count for session, count in zip(sessions, rows, strict=True)]
        self.fused.pool.reserve(max(stops, default=0))

    def _alone(self, session: CudaSession, job: TreeInput) -> PassResult | None:
        """Run one whole tree of one session by the fast path; None if it needs the general one."""
        tree = job.tree
        prelaunched_pass = session.prelaunched_pass
        session.prelaunched_pass = None
        if job.since:
            return None
        if isinstance(tree, DeviceTree) and tree.pruned is None:  # the device holds the pruned tree
            return self._on_device(session, tree, prelaunched_pass)
        if len(tree) > WORD or not self._fits(session, tree.height):
            return None
        self.detach_outputs()
        session.start(tree)
        rows = SingleTree(
            tree.tokens,
            tree.parents,
            tree.depths,
            session.sequence.first,
            session.length,
        )
        return self.fused.run_pass(rows, self._watched, head=True)

    def _on_device(
        self, session: CudaSession, tree: DeviceTree, prelaunched_pass: PrelaunchedPass | None
    ) -> PassResult | None:
        """Run a tree on the device, or take the result of its prelaunched pass."""
        if (
            (rows := tree.rows) is None
            or len(tree) > ROWS
            or not self._fits(session, tree.round_use.depth)
        ):
            return None
        self.detach_outputs()
        moved = session.prepare(tree)
        round_use = tree.round_use
        nodes = len(tree)
        if prelaunched_pass is not None and prelaunched_pass.matches(
            round_use, nodes, self._watched, self.fused
        ):
            result = self.fused.prelaunched_result(
                prelaunched_pass.buffer_index, nodes, self._watched
            )
        else:
            first = session.sequence.first
            result = self.fused.run_device_tree(
                rows,
                round_use.round_buffer.path,
                nodes,
                first,
                session.length,
                moved,
                self._watched,
            )
        session.track_device_tree(tree)
        round_use.round_buffer.runner = PassRunner(self, session, round_use)
        return result

    def _fits(self, session: CudaSession, depth: int) -> bool:
        """True when a tree of this depth fits the context."""
        return session.length + depth + 1 <= self.info.context

    def _roots(
        self, sessions: Sequence[CudaSession], work: Sequence[TreeInput]
    ) -> PassResult | None:
        """Run the roots of many sessions by the fast path; None if they take several passes."""
        if len(work) > MAX_ROWS:
            return None
        check_apart(sessions)
        stop = max(session.length for session in sessions) + 1
        self._check_room(stop)
        self.fused.pool.reserve(stop)
        self.detach_outputs()
        for session, job in zip(sessions, work, strict=True):
            session.start_root(job.tree)
        return self.fused.run_pass(self._root_rows(sessions, work), self._watched, head=True)

    def _trees(self, sessions: Sequence[CudaSession], work: Sequence[TreeInput]) -> PassResult:
        """Run small trees of many sessions by the fast path."""
        check_apart(sessions)
        for session, job in zip(sessions, work, strict=True):
            self._check_room(session.length + job.tree.height + 1)
        self.detach_outputs()
        for session, job in zip(sessions, work, strict=True):
            session.start(job.tree)
        rows = ManyTrees.of(
            [job.tree for job in work],
            np.array([session.sequence.first for session in sessions], np.int64),
            np.array([session.length for session in sessions], np.int64),
        )
        return self.fused.run_pass(rows, self._watched, head=True)

    def _on_host(self, sessions: Sequence[CudaSession], work: Sequence[TreeInput]) -> PassResult:
        """Run trees whose columns are on the host."""
        result = self._run_rows(self._begin(sessions, work, ()))
        for session, job in zip(sessions, work, strict=True):
            session.scored(job.tree, {})
        return result

    def _mixed(
        self,
        sessions: Sequence[CudaSession],
        work: Sequence[TreeInput],
        chunks: Sequence[PrefillChunk],
    ) -> PassResult:
        """Run trees, whose columns are on the host, and chunks of prompts in one pass."""
        count = sum(len(job.tree) - job.since for job in work)
        if all(is_root(job) for job in work):
            rows = self._roots_and(sessions, work, chunks)
            shape = rows.shape(self.fused.heads)
            result = self.fused.run_mixed(rows, shape, self._watched, count)
        else:
            [trees] = split_passes(self._begin(sessions, work, chunks))
            shape = shape_of_rows(trees, self.fused.heads, count)
            result = self.fused.run_mixed(trees, shape, self._watched, count)
            for session, job in zip(sessions, work, strict=True):
                session.scored(job.tree, {})
        self.commit_chunks(result, count, chunks)
        kept = {layer: states[:count] for layer, states in result.kept.items()}
        return dataclasses.replace(result, states=None, kept=kept)

    def commit_chunks(self, result: PassResult, count: int, chunks: Sequence[PrefillChunk]) -> None:
        """Commit the chunks whose rows follow the first `count` of a pass."""
        assert result.states is not None
        # the next pass overwrites the buffers
        read = {layer: states[count:].clone() for layer, states in result.kept.items()}
        read[self.layers] = result.states[count:].clone()
        start = 0
        for chunk in chunks:
            part = slice(start, start + len(chunk.tokens))
            states = {layer: found[part] for layer, found in read.items()}
            self._own(chunk).learn(chunk.tokens, states, self.fused.compute_logits)
            start = part.stop

    def _roots_and(
        self,
        sessions: Sequence[CudaSession],
        work: Sequence[TreeInput],
        chunks: Sequence[PrefillChunk],
    ) -> RootsAndPrompts:
        """The rows of roots and of chunks, by a fast path."""
        self.detach_outputs()
        texts = [self._own(chunk) for chunk in chunks]
        self._check_room(max([0, *(session.length + 1 for session in sessions)]))
        for session, job in zip(sessions, work, strict=True):
            session.start_root(job.tree)
        for text, chunk in zip(texts, chunks, strict=True):
            text.extend(len(chunk.tokens))
        return with_prompts(self._root_rows(sessions, work), texts, chunks)

    def _root_rows(self, sessions: Sequence[CudaSession], work: Sequence[TreeInput]) -> RootRows:
        return RootRows(
            np.array([job.tree.tokens[ROOT] for job in work], np.int64),
            np.array([session.sequence.first for session in sessions], np.int64),
            np.array([session.length for session in sessions], np.int64),
        )

    def _begin(
        self,
        sessions: Sequence[CudaSession],
        work: Sequence[TreeInput],
        chunks: Sequence[PrefillChunk],
    ) -> PassInput:
        """Reserve the rows of trees and chunks."""
        for session in sessions:
            session.prelaunched_pass = None
        begun = [
            session.begin(job.tree, job.since) for session, job in zip(sessions, work, strict=True)
        ]
        begun += [self._own(chunk).extend(len(chunk.tokens)) for chunk in chunks]
        blocks = [block for block, _ in begun]
        self._check_room(max(int(block.positions.max()) + 1 for block in blocks))
        self.detach_outputs()
        tokens = [job.tree.tokens[job.since :] for job in work]
        tokens += [np.asarray(chunk.tokens, np.int64) for chunk in chunks]
        return PassInput(np.concatenate(tokens), blocks, [span for _, span in begun])

    def _run_rows(self, rows: PassInput) -> PassResult:
        """The result of all rows; if they take several passes, in memory of its own."""
        results = self.fused.run(rows, self._watched, head=True)
        first = next(results)
        if len(rows.tokens) == len(first.logits if first.logits is not None else ()):
            return first
        return join([first.copy(), *(result.copy() for result in results)])

    def _own(self, job: TreeInput | PrefillChunk) -> CudaSession:
        session = job.session
        if not isinstance(session, CudaSession) or session.sequence.pool is not self.fused.pool:
            raise TypeError(FOREIGN)
        return session

    def detach_outputs(self) -> None:
        """Detach outputs that are still referenced from the buffers of the last pass."""
        for lent in self._outputs:
            if (scores := lent()) is not None:
                scores.detach_buffers()
        self._outputs = []


def is_root(job: TreeInput) -> bool:
    """True when a tree on the host has no node but its root."""
    return len(job.tree) == 1 and not job.since and not isinstance(job.tree, DeviceTree)


def with_prompts(
    roots: RootRows, texts: Sequence[CudaSession], chunks: Sequence[PrefillChunk]
) -> RootsAndPrompts:
    """Rows of roots, then of chunks of prompts."""
    return RootsAndPrompts.of(
        roots,
        [
            (np.asarray(chunk.tokens, np.int64), text.sequence.first, text.length)
            for text, chunk in zip(texts, chunks, strict=True)
        ],
    )
