"""Prometheus metrics of a server: what requests wait for, what passes bring, what guesses are worth.

Counted on the engine's thread after each step, outside of the round's clock. Label values come from closed
sets: parts of this package, bands of depth and chance, kinds of ends; never from a request's text.
"""

import math
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from sapwood.arrays import IntArray
from sapwood.completion import Step
from sapwood.protocols import Drafter
from sapwood.recipes import resolve
from sapwood.records import Outcome
from sapwood.reliability import BINS, Reliability
from sapwood.serve.jobs import Ticket
from sapwood.serve.live import origin, voices
from sapwood.serve.rounds import Round
from sapwood.serve.visit import Visit
from sapwood.serve.worker import Worker
from sapwood.tree import AID_NAMES

KIND = CONTENT_TYPE_LATEST
WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)  # seconds
STAYS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)  # seconds
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)  # rows
DEEPEST = 8  # depth from which on guesses are counted together
MODEL, SEVERAL = "model", "several"  # origins beside the drafters: the target's own token, a guess of more than one


def bands(bins: int) -> list[str]:
    """Names of equal bands of chance."""
    return [f"{place / bins:.1f}-{(place + 1) / bins:.1f}" for place in range(bins)]


class Metrics:
    """Counts what a worker does."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.registry = CollectorRegistry()
        self._last: WeakKeyDictionary[Ticket, float] = WeakKeyDictionary()  # when each job was last heard of
        self._requests()
        self._passes()
        self._guesses()
        self.registry.register(Gauges(worker))
        worker.watchers.append(self.watch)
        worker.round_watchers.append(self.watch_round)

    def _requests(self) -> None:
        seconds, counter = self._seconds, self._counter
        self.queue = seconds("queue", "from the submission of a request to its memory", WAITS)
        self.first = seconds("first_token", "from the submission of a request to its first token", WAITS)
        self.between = seconds("between_tokens", "from token to token, those of one pass in equal parts", GAPS)
        self.whole = seconds("request", "from the submission of a request to its last token", STAYS)
        self.requests = counter("requests", "requests that were answered to their end, by what ended them", ["finish"])
        self.errors = counter("errors", "answers that were no success, by HTTP status", ["code"])
        self.prompts = counter("prompt_tokens", "tokens of prompts of requests that were begun")
        self.tokens = counter("tokens", "tokens that were generated, by who guessed them", ["origin"])

    def _passes(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.passes = counter("passes", "passes of the target")
        self.passed = self._seconds("pass", "of a pass of the target", GAPS)
        self.rows = histogram("pass_rows", "rows of a pass: nodes and roots of all its trees, and of prompts", SIZES)
        self.trees = histogram("pass_trees", "requests that shared a pass", SIZES)
        self.nodes = counter("nodes", "nodes that the target checked, by what became of them", ["fate"])
        self.grown = counter("grown_nodes", "nodes that drafters proposed")
        self.stages = counter("stage_seconds", "seconds of rounds by stage", ["stage"])
        self.plain = counter("plain_seconds", "seconds that plain decoding would have taken, by the cost curve")

    def _guesses(self) -> None:
        counter, guess = self._counter, ["drafter", "depth"]
        self.tried = counter("guesses_tried", "checked guesses whose parent was accepted", guess)
        self.accepted = counter("guesses_accepted", "guesses that became output", guess)
        self.foreseen = counter("calibration_nodes", "guesses put to the question, by foreseen chance", ["chance"])
        self.hopes = counter("calibration_foreseen", "sum of the foreseen chances of these guesses", ["chance"])
        self.stood = counter("calibration_accepted", "those of them that were the target's own token", ["chance"])

    def _counter(self, name: str, about: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"sapwood_{name}", about, labels or [], registry=self.registry)

    def _seconds(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(f"{name}_seconds", f"seconds {about}", buckets)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"sapwood_{name}", about, buckets=buckets, registry=self.registry)

    # ------------------------------------------------------------------------------- counting
    def watch(self, ticket: Ticket, step: Step) -> None:
        """Take in a step; called by the engine's thread."""
        now, last = time.monotonic(), self._last.get(ticket)
        self._last[ticket] = now
        if last is None:
            self._begin(ticket, now)
        elif step.pieces:
            for _ in step.pieces:
                self.between.observe((now - last) / len(step.pieces))
        self._count(step, self.names(ticket.job.recipe))
        if step.done:
            self.requests.labels(step.finish).inc()
            self.whole.observe(now - ticket.submitted)

    def _begin(self, ticket: Ticket, now: float) -> None:
        self.prompts.inc(len(ticket.job.prompt))
        self.first.observe(now - ticket.submitted)
        if ticket.started is not None:
            self.queue.observe(ticket.started - ticket.submitted)

    def _count(self, step: Step, names: Mapping[int, str]) -> None:
        outcome = step.outcome
        for place, piece in enumerate(step.pieces):
            self.tokens.labels(called(origin(piece, place, outcome), names)).inc()
        checked, kept = len(outcome.tree) - 1, sum(piece.drafted for piece in step.pieces)
        self.grown.inc(len(outcome.grown) - 1)
        self.nodes.labels("accepted").inc(kept)
        self.nodes.labels("refused").inc(checked - kept)
        if checked:
            self._judge(outcome, names)
            self._calibrate(outcome)

    def watch_round(self, told: Round) -> None:
        """Take in a round of all requests; called by the engine's thread."""
        self.passes.inc()
        self.passed.observe(told.verify)
        self.rows.observe(told.trees + told.nodes + told.reading)
        self.trees.observe(told.trees)
        rest = max(told.seconds - told.draft - told.verify, 0.0)
        for stage, seconds in (("draft", told.draft), ("verify", told.verify), ("other", rest)):
            self.stages.labels(stage).inc(seconds)
        if told.trees:  # a plain pass gives each request one token
            self.plain.inc(told.plain * told.tokens / told.trees)

    def _judge(self, outcome: Outcome, names: Mapping[int, str]) -> None:
        """Guesses by drafter and depth; one that several drafters made counts for each of them."""
        tree, path = outcome.tree, np.array(outcome.verdict.path)
        tried = np.flatnonzero(np.isin(tree.parents, path))
        for counter, nodes in ((self.tried, tried), (self.accepted, path[1:])):
            for bit, name in names.items():
                own = nodes[(tree.sources[nodes] >> bit) & 1 == 1]
                for depth, count in tallied(np.minimum(tree.depths[own], DEEPEST)):
                    counter.labels(name, f"{depth}+" if depth == DEEPEST else str(depth)).inc(count)

    def _calibrate(self, outcome: Outcome) -> None:
        """The chance that the policy gave to guesses against what became of them."""
        seen = Reliability()
        seen.count(outcome)
        for band in np.flatnonzero(seen.sums[0]).tolist():
            for counter, values in zip((self.foreseen, self.hopes, self.stood), seen.sums, strict=True):
                counter.labels(BANDS[band]).inc(float(values[band]))

    def names(self, recipe: str) -> Mapping[int, str]:
        """Who drafts in a recipe, by their bits; empty is the server's own."""
        return named(recipe) if recipe else by_bit(self.worker.llm.recipe.drafter)

    def visit(self, visit: Visit) -> None:
        """Take in a visit that is over."""
        if visit.status >= 400:
            self.errors.labels(str(visit.status)).inc()

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)


BANDS = bands(BINS)


@lru_cache(maxsize=128)
def named(recipe: str) -> Mapping[int, str]:
    """Who drafts in a recipe that is not the server's own."""
    return by_bit(resolve(recipe).drafter)


def by_bit(drafter: Drafter) -> Mapping[int, str]:
    """Names by the bits of a node's sources: drafters, and what a request itself knows."""
    return {**{bit: voice["name"] for bit, voice in enumerate(voices(drafter))}, **AID_NAMES}


def called(sources: int, names: Mapping[int, str]) -> str:
    """The origin of a token for a label."""
    if not sources:
        return MODEL
    if sources & (sources - 1):
        return SEVERAL
    return names.get(sources.bit_length() - 1, "other")


def tallied(values: IntArray) -> list[tuple[int, int]]:
    """Each value with how often it occurs."""
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


class Gauges(Collector):
    """What is true of the worker at the moment it is asked."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def collect(self) -> Iterator[Metric]:
        """Requests, blocks, and what the controllers go by."""
        now = self.worker.snapshot()
        requests = {"running": now.running, "reading": now.reading, "waiting": now.waiting}
        yield gauge("requests_now", "requests by what happens to them", "state", requests)
        blocks = {"used": now.used, "cached": now.cached, "all": math.inf if now.blocks is None else now.blocks}
        yield gauge(
            "kv_blocks", "blocks of memory: held by texts, kept for texts that begin alike, all", "kind", blocks
        )
        yield gauge("kv_block_tokens", "tokens of a block", "", {"": now.block})
        yield gauge("controller_rate", "tokens per second that further nodes must beat", "", {"": now.rate})
        yield gauge("controller_resting", "1 while drafting was found not to pay", "", {"": now.resting})
        yield gauge("nodes_per_pass", "nodes of all trees of a pass, lately", "", {"": now.nodes_per_pass})
        yield gauge(
            "tokens_per_second", "tokens of all requests, lately, pauses left out", "", {"": now.tokens_per_second}
        )
        yield gauge("draining", "1 while nothing new is taken", "", {"": now.draining})
        preempted = CounterMetricFamily("sapwood_preemptions", "requests that had to give their memory up for a while")
        preempted.add_metric([], now.preemptions)
        yield preempted


def gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One gauge, by a label where it has one."""
    made = GaugeMetricFamily(f"sapwood_{name}", about, labels=[label] if label else [])
    for word, value in values.items():
        made.add_metric([word] if label else [], value)
    return made
