"""Launches whole rounds of a batch on the device, each before the host has read the last one.

A round is three captured steps and two transfers: the arguments of requests that join, the draft
(which takes its text from the verdicts of the round before), the pass, and the verification, which
moves keys and values of accepted paths and leaves the text of the next round; then the results.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.backends.torch.cuda.draft.batch_draft import (
    BATCHES,
    KEPT,
    BatchDraft,
    layout_of,
    step_up,
    tree_marks,
)
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS, DeviceTimer
from sapwood.backends.torch.cuda.draft.eagle_layer import LevelSizes
from sapwood.backends.torch.cuda.draft.feature_rows import FeatureIndex
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    NEW,
    NODES,
    ROOT_AT,
    ROOT_TOKEN,
    SEQUENCE,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.kernels.attention_tiles import WORD
from sapwood.backends.torch.cuda.pass_inputs import LADDER, MAX_ROWS, PassShape, bucket
from sapwood.backends.torch.cuda.rounds.launched_round import (
    CudaRound,
    ResultColumns,
    result_columns,
)
from sapwood.backends.torch.cuda.rounds.prompt_rows import PromptRows, shape_with_prompts
from sapwood.backends.torch.cuda.rounds.round_reference import (
    ARGS,
    BEFORE,
    CARRY,
    OWN,
    SEED,
    TEMPERATURE,
    TEXT,
)
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.backends.torch.cuda.tree_rows import shape_of_trees
from sapwood.backends.torch.cuda.verify.device_verifier import kernels as verify_steps
from sapwood.backends.torch.cuda.verify.device_verifier import signed
from sapwood.core.array_types import IntArray
from sapwood.core.device_rounds import RoundBatch, RoundRequest
from sapwood.core.types import TreeShape

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
    from sapwood.backends.torch.cuda.network import CudaNetwork

MOST_REQUESTS = BATCHES[-1]
DEEPEST = MAX_NEW_ROWS - 1  # the path and the bonus are new text of the next round
TIMED = 3  # replays of a draft that are timed together
ON_THEIR_WAY = 3  # transfers of arguments: of a round, of the one behind it, and a spare


def kernels(device: torch.device) -> Any:
    """The module whose functions run the steps between draft and pass on this device."""
    if device.type == "cuda":
        from sapwood.backends.torch.cuda.rounds import round_kernels

        return round_kernels
    from sapwood.backends.torch.cuda.rounds import round_reference

    return round_reference


class BatchArgsBuffer:
    """Arguments of up to `requests` requests on the device, and how many are there."""

    def __init__(self, device: torch.device, requests: int) -> None:
        self.words = torch.zeros(requests * ARGS + 1, dtype=torch.int64, device=device)
        self.args = self.words[:-1].view(requests, ARGS)
        self.live = self.words[-1:]
        # of sampled rows: noise keys and temperatures
        self.keys = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        self.heat = torch.zeros(MAX_ROWS, dtype=torch.float64, device=device)
        pinned = device.type == "cuda"
        self.hosts = [
            torch.zeros(requests * ARGS + 1, dtype=torch.int64, pin_memory=pinned)
            for _ in range(ON_THEIR_WAY)
        ]
        self.turn = 0

    def blank(self, padding: Sequence[int]) -> tuple[Tensor, IntArray]:
        """Arguments on the host without a request, and their lines, [requests, ARGS]."""
        self.turn = (self.turn + 1) % len(self.hosts)
        host = self.hosts[self.turn]
        words: IntArray = host.numpy()
        words[:] = 0
        lines = words[:-1].reshape(-1, ARGS)
        lines[:, BEFORE] = -1
        lines[:, OWN:TEXT] = padding
        return host, lines


class DeviceRounds:
    """Rounds of one trained head over one network."""

    def __init__(self, network: "CudaNetwork", builder: "CudaTreeBuilder") -> None:
        self.network = network
        self.builder = builder
        self.device = builder.device
        self.ops = kernels(self.device)
        self.verify_ops = verify_steps(self.device)
        # left by a round for the next one
        self.carry = torch.zeros(MOST_REQUESTS, CARRY, dtype=torch.int64, device=self.device)
        self.features = builder.hidden_states.new_zeros(
            MOST_REQUESTS, MAX_NEW_ROWS, builder.hidden_states.shape[1]
        )
        self.drawn = torch.zeros(MAX_ROWS, dtype=torch.int64, device=self.device)
        self.args: dict[int, BatchArgsBuffer] = {}  # by requests
        self.results: dict[tuple[int, ResultColumns], Tensor] = {}  # by requests
        self.columns: dict[ResultColumns, Tensor] = {}  # their index on the device
        self.steps: dict[tuple[Any, ...], CapturedStep] = {}
        self.known: set[tuple[Any, ...]] = set()  # rounds of which everything was captured
        self.made_for: tuple[Any, ...] = ()
        self.seconds: dict[tuple[int, LevelSizes], float] = {}  # of a draft, by requests and sizes
        self.last: CudaRound | None = None  # the round launched last

    # ------------------------------------------------------------------------------- what fits
    def level_sizes(self, shape: TreeShape) -> LevelSizes | None:
        """Sizes of the levels of trees of this shape; None if they cannot be drafted in rounds."""
        fits = shape.nodes < WORD and shape.depth <= DEEPEST and shape.nodes > 0
        return self.builder.level_sizes(shape) if fits else None

    def fits(self, batch: RoundBatch) -> bool:
        """True when all buffers have room for this round, and all of it was captured."""
        sizes = self.level_sizes(batch.shape)
        count = len(batch.requests)
        if sizes is None or not 0 < count <= MOST_REQUESTS:
            return False
        each = 1 + min(batch.shape.nodes, sizes.size - 1)
        joining = [one.job for one in batch.requests if one.before < 0]
        new = max((sum(len(tokens) for _, tokens in job.unread) for job in joining), default=0)
        raw = all(batch.shape.lines(job.source) is None for job in joining)
        longest = self._longest(batch.requests, each)
        return (
            raw
            and count * each <= MAX_ROWS
            and new <= MAX_NEW_ROWS
            and longest + sizes.depth < self.network.pool.slots
            and self._captured(batch, sizes, each, longest)
        )

    def _captured(self, batch: RoundBatch, sizes: LevelSizes, each: int, longest: int) -> bool:
        """True when the round captures and compiles nothing, which would stop all texts."""
        if self.device.type != "cuda":
            return True
        self._check_steps()
        count = len(batch.requests)
        if longest + MAX_NEW_ROWS + sizes.opened > self.builder.pool.keys.shape[2]:
            return False  # the head's KV pool would be replaced
        sampled = any(one.temperature for one in batch.requests)
        drawn = step_up(count * each, LADDER) if sampled else 0
        shape = self.pass_shape(count, each, longest)
        draft = self.builder.batch(count)
        asked = draft.requests, draft.version, sizes, each, drawn, shape
        if asked in self.known:
            return True
        names = (
            ("draft", draft.requests, draft.version, sizes),
            ("verify", draft.requests, result_columns(sizes.depth, each), drawn),
        )
        steps = [self.steps.get(name) for name in names]
        found = all(step is not None and step.steady for step in steps)
        found = found and self.network.is_captured(shape)
        if found:
            self.known.add(asked)
        return found

    def _longest(self, requests: Sequence[RoundRequest], rows: int) -> int:
        """Slots that a request may have used at the end of the round."""
        unread = 0 if self.last is None else self.last.longest
        return unread + rows + max(one.session.length for one in requests)

    # ------------------------------------------------------------------------------- launch
    def rows(self, batch: RoundBatch) -> int:
        """Rows of the pass over the trees of a round that fits."""
        sizes = self.level_sizes(batch.shape)
        assert sizes is not None
        return len(batch.requests) * (1 + min(batch.shape.nodes, sizes.size - 1))

    def takes_prompts(self, batch: RoundBatch, chunks: Sequence[int]) -> bool:
        """True when chunks of so many rows can join the pass of a round."""
        count = len(batch.requests)
        trees = self.rows(batch)
        if trees + sum(chunks) > MAX_ROWS:
            return False
        shape = shape_with_prompts(count, trees // count, chunks, self.network.heads)
        return self.network.is_captured(shape)

    @torch.inference_mode()
    def launch(
        self,
        batch: RoundBatch,
        sessions: Sequence[CudaSession],
        watched: Collection[int],
        prompts: PromptRows | None = None,
    ) -> CudaRound:
        """Launch a round behind the one launched before; rows of prompts join its pass."""
        sizes = self.level_sizes(batch.shape)
        assert sizes is not None
        requests = batch.requests
        count = len(requests)
        each = 1 + min(batch.shape.nodes, sizes.size - 1)
        draft = self.builder.batch(count)
        longest = self._longest(requests, each)
        self._make_room(sizes, longest)
        if prompts is None:
            shape = self.pass_shape(count, each, longest)
        else:
            shape = prompts.shape(count, each, self.network.heads)
        network = self.network
        network.buffers = network.buffer_sets[0]
        network.ready(shape, watched)
        self._check_steps()
        for one, session in zip(requests, sessions, strict=True):
            if one.before < 0:
                session.place_root()
        network.pool.run_moves()
        self._send_args(batch, sessions, draft, each)
        sampled = any(one.temperature for one in requests)
        drawn = step_up(count * each, LADDER)  # rows
        self._draft_step(draft, sizes)()
        if prompts is not None:
            network.inputs.send(prompts.behind(count, each), shape)
        self._place_step(draft, shape, each, whole=prompts is None)()
        network.launch((shape, 0, 0), partial(network.step, shape))
        columns = result_columns(sizes.depth, each)
        self._verify_step(draft, columns, drawn if sampled else 0)()
        launched = CudaRound(
            self, columns, count, sessions, [one.job.cache for one in requests],
            sources=[one.job.source for one in requests],
            draft_seconds=self.seconds.get((draft.requests, sizes), 0.0),
        )  # fmt: skip
        launched.send(self.results[draft.requests, columns])
        if batch.learn >= 0:
            marks = tree_marks(batch.shape, sizes.size, requests[batch.learn].job.source)
            layout = layout_of(sizes, step_up(marks.nodes, KEPT))
            launched.drafted_result = draft.transfer.send_one(
                layout, marks, batch.learn, launched.arrival
            )
        launched.record()
        self._follow(batch)
        self.last = launched
        return launched

    def _follow(self, batch: RoundBatch) -> None:
        """Note which requests of the last round go on: their text was read by the head."""
        for one in batch.requests:
            if one.before >= 0:
                assert self.last is not None
                self.last.followed.add(one.before)
            else:
                one.job.cache.text += sum(len(tokens) for _, tokens in one.job.unread)
                one.job.unread.clear()

    def _make_room(self, sizes: LevelSizes, longest: int) -> None:
        """Make room for the texts in the head's KV pool."""
        self.builder.prelaunched = None
        self.builder.make_room(longest + MAX_NEW_ROWS + sizes.opened, longest + MAX_NEW_ROWS)

    def pass_shape(self, count: int, each: int, longest: int) -> PassShape:
        """The shape of a pass over so many trees of `each` rows."""
        heads = self.network.heads
        rows = step_up(count * each, LADDER)
        found = shape_of_trees(rows, bucket(longest), True, heads, sparse=False)
        if count * -(-each // found.tiles.rows) <= found.blocks:
            return found
        return shape_of_trees(rows, bucket(longest), True, heads, sparse=True)

    def _send_args(
        self, batch: RoundBatch, sessions: Sequence[CudaSession], draft: BatchDraft, each: int
    ) -> None:
        """Start the transfer of the arguments."""
        buffer = self._args(draft.requests)
        host, lines = buffer.blank(draft.padding())
        requests = batch.requests
        count = len(requests)
        host.numpy()[-1] = count
        numbers = [
            (one.before, signed(one.seed), one.job.cache.index, session.sequence.first)
            for one, session in zip(requests, sessions, strict=True)
        ]
        columns = [BEFORE, SEED, OWN + SEQUENCE, OWN + FIRST_SLOT]
        lines[:count, columns] = np.array(numbers, np.int64)
        lines[:count, TEMPERATURE] = np.array([one.temperature for one in requests]).view(np.int64)
        lines[:count, OWN + NODES] = each - 1
        index = FeatureIndex()
        places: dict[int, list[int]] = {}  # of the features of requests that join
        for number, one in enumerate(requests):
            if one.before < 0:
                tokens, places[number] = index.add(one.job)
                line = lines[number]
                line[OWN + NEW] = len(tokens)
                line[OWN + ROOT_AT] = sessions[number].length
                line[OWN + TEXT_ROWS] = one.job.cache.text
                line[OWN + ROOT_TOKEN] = tokens[-1]
                line[TEXT : TEXT + len(tokens)] = tokens
        if places:
            self._gather(index, places, draft)
        buffer.words.copy_(host, non_blocking=True)

    def _gather(self, index: FeatureIndex, places: dict[int, list[int]], draft: BatchDraft) -> None:
        """Copy the features of requests that join to their rows of the draft."""
        goals = [
            request * MAX_NEW_ROWS + row
            for request, own in places.items()
            for row in range(len(own))
        ]
        sources = [place for own in places.values() for place in own]
        pinned = self.device.type == "cuda"
        both = torch.tensor([goals, sources], pin_memory=pinned).to(self.device, non_blocking=True)
        source = index.parts[0] if len(index.parts) == 1 else torch.cat(index.parts)
        draft.hidden_states.index_copy_(0, both[0], source.index_select(0, both[1]))

    # ------------------------------------------------------------------------------- captured steps
    def _check_steps(self) -> None:
        """Drop captured steps whose buffers were replaced."""
        network, builder = self.network, self.builder
        buffers = network.buffers
        present = (
            network.pool.version,
            builder.pool.version,
            len(builder.angles),
            buffers.logits.data_ptr(),
            *(states.data_ptr() for states in buffers.watched.values()),
        )
        if present != self.made_for:
            self.steps.clear()
            self.known.clear()
            self.made_for = present

    def _step(self, name: tuple[Any, ...], body: Callable[[], None]) -> CapturedStep:
        if name not in self.steps:
            self.steps[name] = CapturedStep(body, self.device, self.builder.memory)
        return self.steps[name]

    def _args(self, requests: int) -> BatchArgsBuffer:
        if requests not in self.args:
            self.args[requests] = BatchArgsBuffer(self.device, requests)
        return self.args[requests]

    def _draft_step(self, draft: BatchDraft, sizes: LevelSizes) -> CapturedStep:
        draft.ensure_buffers(sizes)
        name = "draft", draft.requests, draft.version, sizes
        return self._step(name, partial(self._draft, draft, sizes))

    def _draft(self, draft: BatchDraft, sizes: LevelSizes) -> None:
        """Take the text of the round before, and draft."""
        args = self._args(draft.requests).args
        given = draft.args
        self.ops.take_args(args, self.carry, given.scalars, given.tokens, given.roots)
        self.ops.take_features(args, self.features, draft.hidden_states)
        draft.steps(sizes, MAX_NEW_ROWS)

    def _place_step(
        self, draft: BatchDraft, shape: PassShape, each: int, *, whole: bool
    ) -> Callable[[], None]:
        """The placing of trees, captured if that was done before the first text.

        Triton takes longer to launch one kernel than CUDA takes for a graph.
        """
        body = partial(self._place, draft, shape, each, whole=whole)
        return self.steps.get(("place", draft.requests, shape, each, whole), body)

    def _place(self, draft: BatchDraft, shape: PassShape, each: int, *, whole: bool) -> None:
        """Write the inputs of the pass over the drafted trees."""
        live = self._args(draft.requests).live
        inputs = self.network.inputs.on_device
        self.ops.place_trees(
            draft.fields, draft.args.scalars, live, inputs, shape, each, whole=whole
        )

    def _verify_step(self, draft: BatchDraft, columns: ResultColumns, sampled: int) -> CapturedStep:
        key = draft.requests, columns
        if columns not in self.columns:  # once: captured steps read it where it lies
            self.columns[columns] = torch.from_numpy(columns.index).to(self.device)
        if key not in self.results:
            size = draft.requests, len(columns.index)
            self.results[key] = torch.zeros(size, dtype=torch.int64, device=self.device)
        body = partial(self._verify, draft, columns, sampled)
        return self._step(("verify", *key, sampled), body)

    def _verify(self, draft: BatchDraft, columns: ResultColumns, sampled: int) -> None:
        """Verify and commit all trees; leave text and features for the next round, and results.

        `sampled` is the number of rows that are drawn at; 0 where all requests are greedy.
        """
        each = columns.rows
        fields, scalars = draft.fields, draft.args.scalars
        buffer = self._args(draft.requests)
        buffers = self.network.buffers
        target_tokens = buffers.best
        if sampled:
            keys, heat = buffer.keys[:sampled], buffer.heat[:sampled]
            target_tokens = self.drawn[:sampled]
            self.ops.noise_keys(buffer.args, fields, scalars, keys, heat, each)
            self.verify_ops.draw_rows(buffers.logits[:sampled], keys, heat, target_tokens)
        states = [buffers.watched[layer] for layer in self.builder.round_buffer.layers]
        self.ops.walk_trees(fields, target_tokens, buffer.live, each)
        self.ops.carry_features(fields, states, buffer.live, self.features, each)
        self.ops.carry_over(fields, scalars, buffer.live, self.carry)
        self.ops.keep_paths(self.network.pool.kept, fields, scalars, buffer.live)
        torch.index_select(
            fields.words, 1, self.columns[columns], out=self.results[draft.requests, columns]
        )

    # ------------------------------------------------------------------------------- warm-up
    @torch.inference_mode()
    def capture(self, shape: TreeShape, count: int, longest: int, watched: Collection[int]) -> None:
        """Capture and time the steps of rounds of so many requests, none of which is there."""
        sizes = self.level_sizes(shape)
        if sizes is None:
            return
        each = 1 + min(shape.nodes, sizes.size - 1)
        if count * each > MAX_ROWS:
            return
        draft = self.builder.batch(count)
        network = self.network
        network.buffers = network.buffer_sets[0]
        found = self.pass_shape(count, each, longest)
        network.ready(found, watched)
        self._check_steps()
        buffer = self._args(draft.requests)
        buffer.words.copy_(buffer.blank(draft.padding())[0])
        columns = result_columns(sizes.depth, each)
        # of batches of this size; smaller ones have captured steps of their own
        drawn = [rows for rows in LADDER if count // 2 * each < rows <= found.rows]
        captured = [
            self._draft_step(draft, sizes),
            *(self._verify_step(draft, columns, rows) for rows in (0, *drawn)),
            self._step(
                ("place", draft.requests, found, each, True),
                partial(self._place, draft, found, each, whole=True),
            ),
        ]
        for step in captured:
            if not step.steady:
                step()
                step()
        self._place(draft, found, each, whole=False)  # compiles it
        if (draft.requests, sizes) not in self.seconds:
            self.seconds[draft.requests, sizes] = self._timed(captured[0])

    def _timed(self, step: CapturedStep) -> float:
        """Seconds of a captured step on the device."""
        timer = DeviceTimer(self.device)
        timer.start()
        for _ in range(TIMED):
            step()
        timer.stop()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return timer.seconds() / TIMED
