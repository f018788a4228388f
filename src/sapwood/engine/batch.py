"""The running requests of one step: trees are grown, pruned together, scored in one pass."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sapwood.controllers.throughput_stats import ThroughputStats, batch_rate, refine
from sapwood.core.protocols import Backend, PrefillChunk, TreeInput
from sapwood.core.types import BatchLoad, Prune, SharedPass
from sapwood.core.whole_tree import TreeJob
from sapwood.engine.cost_model import CostModel
from sapwood.engine.node_budget import batch_price, spend
from sapwood.engine.request import Request
from sapwood.engine.step_stats import BatchPass

LOG = logging.getLogger("sapwood.engine")

Failure = tuple[Request, Exception]


@dataclass
class Batch:
    """All running requests of one step."""

    target: Backend
    cost: CostModel
    requests: list[Request]
    stats: Sequence[ThroughputStats]  # of their recipes, each once
    prefill: int  # rows of prompts in the same pass
    now: Callable[[], float]  # seconds
    inputs: dict[Request, TreeInput] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """Mean number of committed tokens."""
        lengths = [request.running.session.length for request in self.requests]
        return sum(lengths) // len(lengths) if lengths else 0

    @property
    def solo(self) -> bool:
        """True when the pass holds one tree and nothing else."""
        return len(self.requests) == 1 and not self.prefill

    # ------------------------------------------------------------------------------------- trees
    def draft(self, each: int, total: int) -> Iterator[Failure]:
        """Grow all trees, of at most `each` nodes and `total` together; yields failed requests."""
        rows = self.prefill + sum(1 + request.nodes for request in self.requests)
        trees = len(self.requests)
        rate = batch_rate(self.stats)
        jobs: dict[Request, TreeJob] = {}
        alone: list[Request] = []  # their trees are grown one by one
        for request in list(self.requests):
            load = BatchLoad(trees, rows - 1 - request.nodes, rate if trees > 1 else 0.0)
            shares = total if request.priced else total // trees  # priced trees are pruned together
            decoder = request.running
            try:
                decoder.plan_tree(min(each, shares), load)
                job = decoder.tree_job() if trees > 1 else None
            except Exception as error:
                self.requests.remove(request)
                yield request, error
                continue
            if isinstance(job, TreeJob):
                jobs[request] = job
            elif job is not None:
                decoder.grown = job
            else:
                alone.append(request)
            if not self.solo:
                decoder.clock.lap("draft")
        failed = self._draft_together(jobs)
        yield from self._draft_alone([*alone, *failed])
        yield from self._wait([request for request in jobs if request not in failed])

    def _draft_together(self, jobs: Mapping[Request, TreeJob]) -> list[Request]:
        """Launch the drafts of all jobs, one for each builder; requests of those that failed."""
        failed: list[Request] = []
        builders = {id(job.builder): job.builder for job in jobs.values()}
        for builder in builders.values():
            mine = [request for request, job in jobs.items() if job.builder is builder]
            start = self.now()
            try:
                grown = builder.build_batch([jobs[request] for request in mine])
            except Exception:  # the cause may be one request: each is drafted alone
                LOG.exception("the trees of several requests could not be drafted together")
                failed += mine
                continue
            share = (self.now() - start) / len(mine)
            for request, tree in zip(mine, grown, strict=True):
                request.running.grown = tree
                request.running.clock.book("draft", share)
        return failed

    def _draft_alone(self, requests: Sequence[Request]) -> Iterator[Failure]:
        """Grow the planned trees of these requests one by one; yields failed requests."""
        several = len(self.requests) > 1
        for request in requests:
            decoder = request.running
            try:
                if several:
                    decoder.clock.restart()
                decoder.grow_planned()
                if several:  # a device holds one such tree, which the next would overwrite
                    decoder.grown.load()
            except Exception as error:
                self.requests.remove(request)
                yield request, error
            else:
                if not self.solo:
                    decoder.clock.lap("draft")

    def _wait(self, requests: Sequence[Request]) -> Iterator[Failure]:
        """Wait for the trees that were drafted together: reading the first transfers all."""
        if not requests:
            return
        start = self.now()
        try:
            requests[0].running.grown.load()
        except Exception as error:
            for request in requests:
                self.requests.remove(request)
                yield request, error
            return
        share = (self.now() - start) / len(requests)
        for request in requests:
            request.running.clock.book("draft", share)

    def prune(self, total: int) -> Iterator[Failure]:
        """Prune all trees, the priced ones by one budget; yields failed requests."""
        alone = self.solo
        able = [
            request for request in self.requests if len(self.requests) > 1 and by_reach(request)
        ]
        for request in list(self.requests):
            if request not in able:
                yield from self._prune(request, None, alone)
        rows = (
            self.prefill + len(able) + sum(tree_input.rows for tree_input in self.inputs.values())
        )
        for request, count in zip(able, self._shares(able, rows, total), strict=True):
            yield from self._prune(request, count, alone)

    def _shares(self, able: Sequence[Request], rows: int, total: int) -> list[int]:
        """Number of nodes of each tree, in a pass that has so many rows already."""
        if not able:
            return []
        drafts = [request.running for request in able]
        reaches = [np.sort(draft.grown.reach[1:])[::-1][: draft.budget.nodes] for draft in drafts]
        nodes = min(
            sum(map(len, reaches)), max(total - rows + len(self.requests) + self.prefill, 0)
        )
        rate = float(np.mean([draft.budget.rate for draft in drafts]))
        return spend(reaches, batch_price(self.cost, self.context, rate, rows, nodes))

    def _prune(self, request: Request, nodes: int | None, alone: bool) -> Iterator[Failure]:
        try:
            if not alone:
                request.running.clock.restart()
            self.inputs[request] = request.running.prune(nodes)
        except Exception as error:
            self.requests.remove(request)
            yield request, error

    def without(self, request: Request) -> None:
        """Remove a request from the pass."""
        if request in self.requests:
            self.requests.remove(request)
        self.inputs.pop(request, None)

    # -------------------------------------------------------------------------------------- pass
    def score(self, chunks: Sequence[PrefillChunk]) -> BatchPass:
        """Score all trees and prefill all chunks in one pass."""
        inputs = self.inputs
        start = self.now()
        outputs = self.target.score(list(inputs.values()), chunks)
        prefill = sum(len(chunk.tokens) for chunk in chunks)
        found = BatchPass(list(zip(inputs, outputs, strict=True)), prefill, 0.0)
        alone = len(inputs) == 1 and not prefill
        if outputs and not alone and self.target.info.device != "cpu":
            outputs[-1].argmax()  # waits for the device
        found.seconds = self.now() - start
        if inputs and not alone:
            sizes = [tree_input.rows for tree_input in inputs.values()]
            seen = sum(
                size * tree_input.session.length
                for size, tree_input in zip(sizes, inputs.values(), strict=True)
            )
            found.shared = SharedPass(
                len(inputs), sum(sizes), prefill, seen // sum(sizes), found.seconds
            )
        return found

    def score_apart(self) -> tuple[BatchPass, list[Failure]]:
        """Score the trees one by one; returns the requests whose pass failed too."""
        found = BatchPass([], 0, 0.0, whole=False)
        failed = []
        start = self.now()
        for request, tree_input in list(self.inputs.items()):
            try:
                [output] = self.target.score([tree_input])
                found.outputs.append((request, output))
            except Exception as error:
                self.without(request)
                failed.append((request, error))
        found.seconds = self.now() - start
        if found.outputs:
            rows = sum(len(tree_input.tree) for tree_input in self.inputs.values())
            found.shared = SharedPass(len(self.inputs), rows, 0, self.context, found.seconds)
        return found, failed

    # -------------------------------------------------------------------------------- statistics
    def settle(self, found: BatchPass, *, measured: bool) -> None:
        """Refine the cost model by the pass, and update the statistics of all recipes."""
        if found.shared is None:
            return
        if not found.whole:
            for stats in self.stats:
                stats.entries.clear()
            return
        shared = refine(self.cost, found.shared) if measured else found.shared
        tokens = sum(len(step.outcome.tokens) for _, step in found.steps)
        for stats in self.stats:
            mine = sum(entry.tokens for entry in stats.entries)
            spent = sum(entry.draft for entry in stats.entries)
            stats.settle(shared, self.cost, tokens - mine, max(found.draft - spent, 0.0))


def by_reach(request: Request) -> bool:
    """True when single nodes of a request's tree may be pruned by reach and price."""
    draft = request.running
    grown = draft.grown
    whole = grown.pruned is None and 1 < len(grown) == grown.valued
    return whole and draft.budget.price is not None and draft.policy.prunes is Prune.NODES
