"""Launches whole rounds of a batch on the device, each before the host has read the last one.

A round is three captured steps and two transfers: the arguments of requests that join, the draft
(which takes its text from the verdicts of the round before), the pass, and the verification, which
moves keys and values of accepted paths and leaves the text of the next round; then the results.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.backends.torch.cuda.draft.batch_buffers import ResultLayout, TreeMarks
from sapwood.backends.torch.cuda.draft.batch_draft import (
    BATCHES,
    KEPT,
    BatchDraft,
    layout_of,
)
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
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
from sapwood.backends.torch.cuda.pass_inputs import LADDER, MAX_ROWS, PassShape, bucket, step_up
from sapwood.backends.torch.cuda.rounds.launched_round import (
    BatchArgsBuffer,
    CudaRound,
    ResultColumns,
    result_columns,
)
from sapwood.backends.torch.cuda.rounds.prompt_rows import PromptRows, shape_with_prompts
from sapwood.backends.torch.cuda.rounds.round_reference import (
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
from sapwood.core.array_types import IntArray
from sapwood.core.device_rounds import RoundBatch, RoundRequest
from sapwood.core.rng import MASK
from sapwood.core.types import TreeShape

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
    from sapwood.backends.torch.cuda.network import CudaNetwork

MOST_REQUESTS = BATCHES[-1]
levels_of = attrgetter("nodes", "depth", "beam", "width")  # of a `TreeShape`
DEEPEST = MAX_NEW_ROWS - 1  # the path and the bonus are new text of the next round


def kernels(device: torch.device) -> Any:
    """The module whose functions run the steps between draft and pass on this device."""
    if device.type == "cuda":
        from sapwood.backends.torch.cuda.rounds import round_kernels

        return round_kernels
    from sapwood.backends.torch.cuda.rounds import round_reference

    return round_reference


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Sizes and steps of rounds of one shape, until a text grows into the next bucket."""

    levels: tuple[int, int, int, int]  # of its trees; see `levels_of`
    requests: int
    sizes: LevelSizes
    each: int  # rows of a tree
    draft: BatchDraft
    padding: list[int]  # scalars of a place without a request
    columns: ResultColumns
    layout: ResultLayout  # of a drafted tree that comes to the host
    drawn: int  # rows that sampled tokens are drawn at
    passed: PassShape  # of the pass over the trees alone
    above: int  # its texts are longer than this
    most: int  # and no longer than this


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
        self.draft_seconds: dict[tuple[int, LevelSizes], float] = {}  # by requests
        self.last: CudaRound | None = None  # the round launched last
        self._planned: RoundPlan | None = None

    # ------------------------------------------------------------------------------- what fits
    def level_sizes(self, shape: TreeShape) -> LevelSizes | None:
        """Sizes of the levels of trees of this shape; None if they cannot be drafted in rounds."""
        fits = shape.nodes < WORD and shape.depth <= DEEPEST and shape.nodes > 0
        return self.builder.level_sizes(shape) if fits else None

    def fits(self, batch: RoundBatch) -> bool:
        """True when all buffers have room for this round, and all of it was captured."""
        text = self._text(batch)
        plan = self._plan(batch, text)
        if plan is None:
            return False
        joining = [one.job for one in batch.requests if one.before < 0]
        new = max((sum(len(tokens) for _, tokens in job.unread) for job in joining), default=0)
        raw = all(batch.shape.lines(job.source) is None for job in joining)
        longest = text + plan.each
        return (
            raw
            and new <= MAX_NEW_ROWS
            and longest + plan.sizes.depth < self.network.pool.slots
            and self._captured(batch, plan, longest)
        )

    def _plan(self, batch: RoundBatch, text: int) -> RoundPlan | None:
        """The plan of a round, most often that of the last one; None if it cannot be drafted."""
        plan = self._planned
        count = len(batch.requests)
        levels = levels_of(batch.shape)
        same = plan is not None and (plan.requests, plan.levels) == (count, levels)
        if plan is not None and same and plan.above < text + plan.each <= plan.most:
            return plan
        sizes = self.level_sizes(batch.shape)
        if sizes is None or not 0 < count <= MOST_REQUESTS:
            return None
        each = 1 + min(batch.shape.nodes, sizes.size - 1)
        if count * each > MAX_ROWS:
            return None
        draft = self.builder.batch(count)
        draft.ensure_buffers(sizes)
        most = bucket(text + each)
        self._planned = plan = RoundPlan(
            levels=levels,
            requests=count,
            sizes=sizes,
            each=each,
            draft=draft,
            padding=draft.padding(),
            columns=result_columns(sizes.depth, each),
            layout=layout_of(sizes, step_up(each, KEPT)),
            drawn=step_up(count * each, LADDER),
            passed=self.pass_shape(count, each, most),
            above=0 if most == bucket(1) else most // 2,
            most=most,
        )
        return plan

    def _captured(self, batch: RoundBatch, plan: RoundPlan, longest: int) -> bool:
        """True when the round captures and compiles nothing, which would stop all texts."""
        if self.device.type != "cuda":
            return True
        self.check_steps()
        sizes, draft = plan.sizes, plan.draft
        if longest + MAX_NEW_ROWS + sizes.opened > self.builder.pool.keys.shape[2]:
            return False  # the head's KV pool would be replaced
        drawn = plan.drawn if any(one.temperature for one in batch.requests) else 0
        asked = draft.requests, draft.version, sizes, plan.each, drawn, plan.passed
        if asked in self.known:
            return True
        names = (
            ("draft", draft.requests, draft.version, sizes),
            ("verify", draft.requests, plan.columns, drawn),
        )
        steps = [self.steps.get(name) for name in names]
        found = all(step is not None and step.steady for step in steps)
        found = found and self.network.is_captured(plan.passed)
        if found:
            self.known.add(asked)
        return found

    def _text(self, batch: RoundBatch) -> int:
        """Most committed tokens that a request may have before the round."""
        unread = 0 if self.last is None else self.last.longest
        return unread + max(one.session.length for one in batch.requests)

    # ------------------------------------------------------------------------------- launch
    def rows(self, batch: RoundBatch) -> int:
        """Rows of the pass over the trees of a round that fits."""
        plan = self._plan(batch, self._text(batch))
        assert plan is not None
        return plan.requests * plan.each

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
        text = self._text(batch)
        plan = self._plan(batch, text)
        assert plan is not None
        requests = batch.requests
        count, each, sizes, draft = plan.requests, plan.each, plan.sizes, plan.draft
        self._make_room(sizes, text + each)
        shape = plan.passed
        if prompts is not None:
            shape = prompts.shape(count, each, self.network.heads)
        network = self.network
        network.buffers = network.buffer_sets[0]
        network.ready(shape, watched)
        self.check_steps()
        for one, session in zip(requests, sessions, strict=True):
            if one.before < 0:
                session.place_root()
        network.pool.run_moves()
        self._send_args(batch, sessions, plan)
        sampled = any(one.temperature for one in requests)
        self.draft_step(draft, sizes)()
        if prompts is not None:
            network.inputs.send(prompts.behind(count, each), shape)
        self.place_step(draft, shape, each, whole=prompts is None)()
        network.launch((shape, 0, 0), partial(network.step, shape))
        self.verify_step(draft, plan.columns, plan.drawn if sampled else 0)()
        launched = CudaRound(
            self, plan.columns, count, sessions, [one.job.cache for one in requests],
            sources=[one.job.source for one in requests],
            draft_seconds=self.draft_seconds.get((draft.requests, sizes), 0.0),
        )  # fmt: skip
        launched.send(self.results[draft.requests, plan.columns])
        if batch.learn >= 0:
            mark = 1 << requests[batch.learn].job.source
            marks = TreeMarks(batch.shape.depth, sizes.size, each, mark)
            launched.drafted_result = draft.transfer.send_one(
                plan.layout, marks, batch.learn, launched.arrival
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
        builder = self.builder
        builder.prelaunched = None
        rows, positions = longest + MAX_NEW_ROWS + sizes.opened, longest + MAX_NEW_ROWS
        if rows > builder.pool.keys.shape[2] or positions > len(builder.angles):
            builder.make_room(rows, positions)

    def pass_shape(self, count: int, each: int, longest: int) -> PassShape:
        """The shape of a pass over so many trees of `each` rows."""
        heads = self.network.heads
        rows = step_up(count * each, LADDER)
        found = shape_of_trees(rows, bucket(longest), True, heads, sparse=False)
        if count * -(-each // found.tiles.rows) <= found.blocks:
            return found
        return shape_of_trees(rows, bucket(longest), True, heads, sparse=True)

    def _send_args(
        self, batch: RoundBatch, sessions: Sequence[CudaSession], plan: RoundPlan
    ) -> None:
        """Start the transfer of the arguments."""
        buffer = self.args_of(plan.draft.requests)
        host, lines = buffer.blank(plan.padding)
        requests = batch.requests
        count = len(requests)
        host.numpy()[-1] = count
        numbers = [
            (one.before, one.job.cache.index, session.sequence.first)
            for one, session in zip(requests, sessions, strict=True)
        ]
        columns = [BEFORE, OWN + SEQUENCE, OWN + FIRST_SLOT]
        lines[:count, columns] = np.array(numbers, np.int64)
        seeds = np.array([one.seed & MASK for one in requests], np.uint64)
        lines[:count, SEED] = seeds.view(np.int64)
        lines[:count, TEMPERATURE] = np.array([one.temperature for one in requests]).view(np.int64)
        lines[:count, OWN + NODES] = plan.each - 1
        if any(one.before < 0 for one in requests):
            self._place_new_text(requests, sessions, lines, plan.draft)
        buffer.words.copy_(host, non_blocking=True)

    def _place_new_text(
        self,
        requests: Sequence[RoundRequest],
        sessions: Sequence[CudaSession],
        lines: IntArray,
        draft: BatchDraft,
    ) -> None:
        """Write the text of requests that join, and copy its features to the draft."""
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
        self._gather(index, places, draft)

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
    def check_steps(self) -> None:
        """Drop captured steps whose buffers were replaced."""
        network, builder = self.network, self.builder
        buffers = network.buffer_sets[0]  # a prelaunched pass of one request may use the other set
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

    def step_of(self, name: tuple[Any, ...], body: Callable[[], None]) -> CapturedStep:
        """The captured step of this name."""
        if name not in self.steps:
            self.steps[name] = CapturedStep(body, self.device, self.builder.memory)
        return self.steps[name]

    def args_of(self, requests: int) -> BatchArgsBuffer:
        """Arguments of up to so many requests."""
        if requests not in self.args:
            self.args[requests] = BatchArgsBuffer(self.device, requests)
        return self.args[requests]

    def draft_step(self, draft: BatchDraft, sizes: LevelSizes) -> CapturedStep:
        """The draft of all requests."""
        name = "draft", draft.requests, draft.version, sizes
        return self.step_of(name, partial(self._draft, draft, sizes))

    def _draft(self, draft: BatchDraft, sizes: LevelSizes) -> None:
        """Take the text of the round before, and draft."""
        args = self.args_of(draft.requests).args
        given = draft.args
        self.ops.take_args(args, self.carry, given.scalars, given.tokens, given.roots)
        self.ops.take_features(args, self.features, draft.hidden_states)
        draft.steps(sizes, MAX_NEW_ROWS)

    def place_step(
        self, draft: BatchDraft, shape: PassShape, each: int, *, whole: bool
    ) -> Callable[[], None]:
        """The placing of trees, captured if that was done before the first text.

        Triton takes longer to launch one kernel than CUDA takes for a graph.
        """
        body = partial(self.place, draft, shape, each, whole=whole)
        return self.steps.get(("place", draft.requests, shape, each, whole), body)

    def place(self, draft: BatchDraft, shape: PassShape, each: int, *, whole: bool) -> None:
        """Write the inputs of the pass over the drafted trees."""
        live = self.args_of(draft.requests).live
        inputs = self.network.inputs.on_device
        self.ops.place_trees(
            draft.fields, draft.args.scalars, live, inputs, shape, each, whole=whole
        )

    def verify_step(self, draft: BatchDraft, columns: ResultColumns, sampled: int) -> CapturedStep:
        """The verification and commit of all trees."""
        key = draft.requests, columns
        if columns not in self.columns:  # once: captured steps read it where it lies
            self.columns[columns] = torch.from_numpy(columns.index).to(self.device)
        if key not in self.results:
            size = draft.requests, len(columns.index)
            self.results[key] = torch.zeros(size, dtype=torch.int64, device=self.device)
        body = partial(self._verify, draft, columns, sampled)
        return self.step_of(("verify", *key, sampled), body)

    def _verify(self, draft: BatchDraft, columns: ResultColumns, sampled: int) -> None:
        """Verify and commit all trees; leave text and features for the next round, and results.

        `sampled` is the number of rows that are drawn at; 0 where all requests are greedy.
        """
        each = columns.rows
        fields, scalars = draft.fields, draft.args.scalars
        buffer = self.args_of(draft.requests)
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
