"""Continuous batching of trees: one loop of steps over many requests.

Requests join and leave between steps. In each step every running request grows a tree, one node
budget prunes all trees together, and one pass of the target scores the trees and prefills chunks
of prompts. When memory runs out the newest request is preempted; later its prompt and its output
so far are prefilled again. No request changes a token of another.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sapwood.controllers.throughput_stats import ThroughputStats, batch_rate
from sapwood.core.protocols import TargetOutput, TreeInput
from sapwood.core.tree import CAPACITY
from sapwood.core.types import ALONE
from sapwood.engine.batch import Batch
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.node_budget import portions, prefill_rows, rows_within
from sapwood.engine.outputs import Step
from sapwood.engine.prefill import Prefill
from sapwood.engine.prompt_scores import ROWS as PROMPT_ROWS
from sapwood.engine.request import Request
from sapwood.engine.request_pool import RequestPool
from sapwood.engine.rounds_ahead import NoRound, RoundsAhead
from sapwood.engine.run_ahead import LEAST_ROWS, DecodingAhead, RunAhead, StepTotals
from sapwood.engine.step_stats import (
    BatchPass,
    EngineSnapshot,
    RecentStats,
    StepStats,
    settle_step,
)
from sapwood.errors import OutOfMemory

LOG = logging.getLogger("sapwood.engine")
MAX_REQUESTS = 64  # that share a pass
CHUNK = 64  # rows of prompts in a pass with running requests, or more where they cost little
WHOLE = 512  # rows of prompts in a pass at most
BACKLOG = 2  # prompts come first where one request waits to begin for every two that decode
SMALLEST = 2  # rows of the smallest tree, which still fits beside them
LEAST_CHUNK = 16  # rows of prompts in every pass, even over the SLO

Shares = list[tuple[Prefill, int]]  # rows of each prompt in a pass


def no_watch(request: Request, step: Step) -> None:
    """Ignore a step: the default of `Scheduler.watch`."""


@dataclass
class Scheduler:
    """Steps over all requests of a pool, on one thread."""

    pool: RequestPool
    cost: CostModel
    max_requests: int = MAX_REQUESTS
    slo: float | None = None  # seconds that a pass should not exceed
    now: Callable[[], float] = time.perf_counter  # the clock of the engines
    watch: Callable[[Request, Step], None] = no_watch  # called with every step, before `on_step`
    steps: int = 0
    tokens: int = 0
    recent: RecentStats = field(default_factory=RecentStats)
    _alone: bool = False  # the last pass held one tree and nothing else
    # ways of decoding in which the target launches passes ahead
    _ahead: list[DecodingAhead] = field(default_factory=list)
    _apart: bool = False  # the next pass is not launched ahead, as the last launch failed

    def __post_init__(self) -> None:
        able = self.pool.target.capabilities
        if able.launch_roots is not None:
            self._ahead.append(RunAhead(able.launch_roots, able.root_rows, self.now))
        if able.round_launcher is not None:
            self._ahead.append(
                RoundsAhead(
                    self.pool.target,
                    able.round_launcher,
                    lambda: batch_rate(self.throughput()),
                    self.now,
                )
            )

    def step(self) -> StepStats | None:
        """One step; None when there was nothing to do."""
        start = self.now()
        done = self.advance()
        return None if done is None else self._stats(done, self.now() - start)

    def advance(self) -> BatchPass | None:
        """One step without its statistics; None when there was nothing to do."""
        pool = self.pool
        start = self.now()
        pool.sweep()
        if not pool.waiting.empty:
            pool.admit(self.max_requests, self._in_time)
        if pool.prefills:
            pool.begin()
        scored = any(prefill.reader is not None for prefill in pool.prefills)
        under_way = next((way for way in self._ahead if way.last is not None), None)
        if under_way is not None and (scored or self._apart):
            return self._leave(under_way)
        if scored:
            self._score_prompts()
        if not pool.running and all(prefill.reader is not None for prefill in pool.prefills):
            return None if under_way is None else self._leave(under_way)
        each, total, shares = self._sizes()
        if not self._apart:
            way = self._way_ahead(under_way, sum(count for _, count in shares))
            if under_way is not None and way is not under_way:
                return self._leave(under_way)
            if way is not None:
                return self._launch_ahead(way, shares)
        self._apart = False
        if len(pool.running) == 1 and not shares:
            return self._one_request(pool.running[0], min(each, total))
        self._alone = False
        prefill = sum(rows for _, rows in shares)
        batch = Batch(
            pool.target, self.cost, list(pool.running), self.throughput(), prefill, self.now
        )
        for failures in (batch.draft(each, total), batch.prune(total)):
            for request, error in failures:
                self._failed(request, error)
        done = self._score(batch, shares)
        self._verify(done)
        batch.settle(done, measured=pool.measured)
        settle_step(batch.stats, self.cost, done, self.now() - start)
        return done

    # ------------------------------------------------------------------------------- run ahead
    def _way_ahead(self, under_way: DecodingAhead | None, prefill: int) -> DecodingAhead | None:
        """The way in which the next pass can be launched ahead: no two can at the same time."""
        running = self.pool.running
        if under_way is not None and under_way.able(running, prefill):
            return under_way
        if len(running) + prefill < LEAST_ROWS:
            return None
        others = (way for way in self._ahead if way is not under_way)
        return next((way for way in others if way.able(running, prefill)), None)

    def _launch_ahead(self, way: DecodingAhead, shares: Shares) -> BatchPass:
        """Launch the next pass, then read the one before."""
        self._alone = False
        before = way.last
        try:
            way.launch(self.pool.running, [prefill.chunk(rows) for prefill, rows in shares])
        except Exception as error:
            # the same pass is run apart, where its requests can be preempted or end
            if not isinstance(error, (NoRound, OutOfMemory)):
                LOG.exception("a pass could not be launched ahead")
            self._apart = True
            way.take()
        return self._read_ahead(way, before)

    def _leave(self, way: DecodingAhead) -> BatchPass | None:
        """Read the launched pass, before another way of decoding; None if there is none."""
        last = way.take()
        found = None if last is None else self._read_ahead(way, last)
        way.pause()
        return found

    def _read_ahead(self, way: DecodingAhead, batch: Any) -> BatchPass:
        """Read a launched pass, and pass the steps to its requests."""
        if batch is None:
            return BatchPass([], 0, 0.0)
        shared, pending = way.read(batch)
        done = BatchPass([], batch.prefill, shared.seconds, shared)
        for request, make_step in pending:
            self._deliver(done, request, make_step)
        stats = self.throughput()
        way.settle(stats, StepTotals(shared.trees, done.tokens, done.nodes, way.seconds))
        settle_step(stats, self.cost, done, way.seconds)
        return done

    def throughput(self) -> list[ThroughputStats]:
        """The throughput statistics of all running recipes, each once."""
        engines: list[Engine] = []
        last: Engine | None = None  # most often that of all
        for request in self.pool.running:
            if request.engine is not last:
                last = request.engine
                if all(last is not engine for engine in engines):
                    engines.append(last)
        if len(engines) == 1:
            return engines[0].throughput
        return list({id(one): one for engine in engines for one in engine.throughput}.values())

    # ------------------------------------------------------------------------------- sizes
    def _context(self) -> int:
        lengths = [request.running.session.length for request in self.pool.running]
        return sum(lengths) // len(lengths) if lengths else 0

    def _in_time(self, trees: int) -> bool:
        """True when a pass of so many requests is predicted to meet the SLO."""
        return rows_within(self.cost, self._context(), trees, self.slo) >= trees

    def _sizes(self) -> tuple[int, int, Shares]:
        """Most nodes of one tree and of all, and rows of each prompt, by time and memory."""
        pool = self.pool
        memory = pool.target.memory
        trees = len(pool.running)
        if self.slo is None and memory.blocks is None and not pool.prefills:  # no limits
            return CAPACITY - 1, (CAPACITY - 1) * trees, []
        rows = rows_within(self.cost, self._context(), max(trees, 1), self.slo)
        most = self._most_prefill(trees)
        room = min(max(rows - trees, LEAST_CHUNK), most)
        plain = [prefill for prefill in pool.prefills if prefill.reader is None]
        wanted = portions([prefill.left for prefill in plain], room)
        shares = [(prefill, want) for prefill, want in zip(plain, wanted, strict=True) if want]
        each = CAPACITY - 1
        total = max(rows - trees - sum(wanted), 0)
        if memory.blocks is not None and trees:
            free = memory.blocks - memory.used - sum(want // memory.block + 2 for _, want in shares)
            # the last block may have to be copied
            each = min(each, max((free // trees - 1) * memory.block - 1, 0))
        return each, total, shares

    def _most_prefill(self, trees: int) -> int:
        """Most rows of prompts in a pass of so many trees."""
        if not trees:
            return WHOLE
        pool = self.pool
        behind = BACKLOG * (pool.active - trees + len(pool.waiting)) >= trees
        most = max(WHOLE - SMALLEST * trees, CHUNK) if behind else WHOLE
        return prefill_rows(self.cost, self._context(), trees, CHUNK, most, behind=behind)

    # ------------------------------------------------------------------------------- a pass
    def _one_request(self, request: Request, most: int) -> BatchPass:
        """A step of a request that has the engine for itself."""
        load = None if self._alone else ALONE
        self._alone = True
        decoder = request.running
        try:
            decoder.grow(most, load)
            output = self._score_one(decoder.prune())
        except Exception as error:
            self.pool.finish(request, error)
            return BatchPass([], 0, 0.0)
        done = BatchPass([(request, output)], 0, 0.0)
        self._verify(done)
        for _, step in done.steps:
            done.seconds = step.outcome.times.verify
        return done

    def _score_one(self, tree_input: TreeInput) -> TargetOutput:
        try:
            [output] = self.pool.target.score([tree_input])
        except OutOfMemory:
            raise
        except Exception:  # as with several requests, a failed pass is tried once more
            [output] = self.pool.target.score([tree_input])
        return output

    def _score(self, batch: Batch, shares: Shares) -> BatchPass:
        """Run the pass; preempts when memory runs out, scores one by one when it fails."""
        pool = self.pool
        while True:
            shares = [(prefill, rows) for prefill, rows in shares if prefill in pool.prefills]
            if not batch.inputs and not shares:
                return BatchPass([], 0, 0.0)
            try:
                return batch.score([prefill.chunk(rows) for prefill, rows in shares])
            except OutOfMemory as error:
                self._make_room(batch, error)
            except Exception:
                return self._one_by_one(batch, shares)

    def _score_prompts(self) -> None:
        """One pass over prompts whose own tokens are scored; trees run in passes of their own."""
        pool = self.pool
        scored = [one for one in pool.prefills if one.reader is not None and one.left]
        most = pool.target.info.max_nodes
        counts = [min(rows, most) for rows in portions([one.left for one in scored], PROMPT_ROWS)]
        work = [(one, count) for one, count in zip(scored, counts, strict=True) if count]
        if not work:
            return
        try:
            outputs = pool.target.score([one.scored_chunk(count) for one, count in work])
        except OutOfMemory as error:
            self._make_room(None, error)
            return
        except Exception as error:
            for one, _ in work:
                pool.end_prefill(one, error)
            return
        for (one, count), output in zip(work, outputs, strict=True):
            try:
                one.read(output, count)
            except Exception as error:
                pool.end_prefill(one, error)

    def _make_room(self, batch: Batch | None, error: OutOfMemory) -> None:
        """Preempt the newest request; one that is alone and does not fit fails."""
        pool = self.pool
        youngest = pool.youngest()
        if isinstance(youngest, Request) and batch is not None:
            batch.without(youngest)
        if len(pool.running) + len(pool.prefills) > 1:
            pool.preempt(youngest)
        elif isinstance(youngest, Prefill):
            pool.end_prefill(youngest, error)
        else:
            pool.finish(youngest, error)

    def _one_by_one(self, batch: Batch, shares: Shares) -> BatchPass:
        """Score each request alone after a failed pass, to find those that cause the error."""
        for prefill, rows in shares:
            try:
                if prefill.left:  # the pass may have failed after this chunk was committed
                    self.pool.target.score([], [prefill.chunk(rows)])
            except Exception as error:
                self.pool.end_prefill(prefill, error)
        done, failed = batch.score_apart()
        for request, problem in failed:
            self._failed(request, problem)
        return done

    def _failed(self, request: Request, error: Exception) -> None:
        """Preempt a request that lacks memory; end it for any other error."""
        if isinstance(error, OutOfMemory) and self.pool.active > 1:
            self.pool.preempt(request)
        else:
            self.pool.finish(request, error)

    def _verify(self, done: BatchPass) -> None:
        """Verify each scored tree, and pass each step to its request's `on_step`."""
        for request, output in done.outputs:
            self._deliver(done, request, partial(request.verify, output, done.shared))

    def _deliver(self, done: BatchPass, request: Request, verify: Callable[[], Step]) -> None:
        """Pass the step that `verify` makes to a request; one that fails ends it."""
        try:
            step = verify()
        except Exception as error:
            self.pool.finish(request, error)
            return
        done.add(request, step)
        if step.finish is not None:
            self.pool.finish(request)
        self.watch(request, step)
        request.on_step(step)

    # ------------------------------------------------------------------------------- statistics
    def _stats(self, done: BatchPass, seconds: float) -> StepStats:
        """Statistics of a step."""
        nodes = done.nodes
        memory = self.pool.target.memory
        throughput = self.throughput()
        trees = len(done.steps)
        rows = nodes + trees + done.prefill
        context = done.context // max(trees, 1)
        shape = [
            self.cost.seconds(max(count, 1), context, max(trees, 1))
            for count in (rows - nodes, rows)
        ]
        self.steps += 1
        record = StepStats(
            number=self.steps,
            trees=trees,
            nodes=nodes,
            prefill=done.prefill,
            tokens=done.tokens,
            accepted=done.accepted,
            seconds=seconds,
            draft=done.draft,
            verify=done.seconds,
            plain=done.seconds * shape[0] / shape[1],
            rate=batch_rate(throughput),
            resting=any(stats.rest > 0 for stats in throughput),
            running=self.pool.active,
            waiting=0 if self.pool.waiting.empty else len(self.pool.waiting),
            used=memory.used,
            cached=memory.cached,
        )
        self.tokens += record.tokens
        self.recent.count(record)
        return record

    def snapshot(self) -> EngineSnapshot:
        """The present state."""
        pool = self.pool
        memory = pool.target.memory
        throughput = self.throughput()
        recent = self.recent
        return EngineSnapshot(
            running=len(pool.running),
            prefilling=pool.active - len(pool.running),
            waiting=len(pool.waiting),
            used=memory.used,
            cached=memory.cached,
            blocks=memory.blocks,
            block=memory.block,
            rounds=self.steps,
            tokens=self.tokens,
            tokens_per_second=recent.tokens_per_second,
            nodes_per_pass=recent.each(recent.nodes),
            trees_per_pass=recent.each(recent.trees),
            rate=batch_rate(throughput),
            resting=any(stats.rest > 0 for stats in throughput),
            preemptions=pool.preemptions,
        )
