"""Prometheus metrics of a server: latencies, passes, acceptance and calibration.

Counted on the engine's thread after each step, outside of the measured times. Label values come
from closed sets: drafters of this package, ranges of depth and probability, finish reasons; never
from the text of a request.
"""

import math
import time
from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from sapwood.common.calibration import BINS, CalibrationCurve
from sapwood.core.array_types import IntArray
from sapwood.core.protocols import Drafter
from sapwood.core.tree import HINT_NAMES
from sapwood.core.types import BackendInfo, Outcome
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.step_stats import EngineSnapshot, StepStats
from sapwood.recipes import resolve
from sapwood.recipes.drafter_names import drafter_names
from sapwood.server.engine_thread import EngineThread
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.playground.live import origin

CONTENT_TYPE = CONTENT_TYPE_LATEST
WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)  # seconds
STAYS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)  # seconds
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)  # rows
DEEPEST = 8  # depth from which on drafted tokens are counted together
# origins beside the drafters: the target's own token, a token of more than one drafter
MODEL = "model"
SEVERAL = "several"


def bands(bins: int) -> list[str]:
    """Labels of equal ranges of probability."""
    return [f"{index / bins:.1f}-{(index + 1) / bins:.1f}" for index in range(bins)]


class Metrics:
    """Counters and histograms of an engine thread."""

    def __init__(self, engine_thread: EngineThread) -> None:
        self.engine_thread = engine_thread
        self.registry = CollectorRegistry()
        # time of the last step of each request
        self._last: WeakKeyDictionary[Request, float] = WeakKeyDictionary()
        self._names: dict[str, Mapping[int, str]] = {}  # of drafters by bit, by recipe
        self._requests()
        self._passes()
        self._drafts()
        self.registry.register(EngineGauges(engine_thread))
        engine_thread.watchers.append(self.watch)
        engine_thread.step_watchers.append(self.watch_step)

    def _requests(self) -> None:
        seconds, counter = self._seconds, self._counter
        self.queue_seconds = seconds(
            "queue", "from the submission of a request to its start", WAITS
        )
        self.first_token = seconds(
            "first_token", "from the submission of a request to its first token", WAITS
        )
        self.between_tokens = seconds(
            "between_tokens", "from token to token, those of one pass in equal parts", GAPS
        )
        self.request_seconds = seconds(
            "request", "from the submission of a request to its last token", STAYS
        )
        self.requests = counter(
            "requests", "requests that were finished, by finish reason", ["finish"]
        )
        self.errors = counter("errors", "error responses, by HTTP status", ["code"])
        self.prompts = counter("prompt_tokens", "prompt tokens of requests that were started")
        self.tokens = counter("tokens", "tokens that were generated, by drafter", ["origin"])

    def _passes(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.passes = counter("passes", "passes of the target")
        self.pass_seconds = self._seconds("pass", "of a pass of the target", GAPS)
        self.rows = histogram(
            "pass_rows", "rows of a pass: nodes and roots of all its trees, and of prompts", SIZES
        )
        self.trees = histogram("pass_trees", "requests that shared a pass", SIZES)
        self.nodes = counter("nodes", "nodes that were verified, accepted or refused", ["fate"])
        self.grown = counter("grown_nodes", "nodes that drafters proposed")
        self.stages = counter("stage_seconds", "seconds of rounds by stage", ["stage"])
        self.plain = counter(
            "plain_seconds", "seconds that plain decoding would have taken, by the cost curve"
        )

    def _drafts(self) -> None:
        counter = self._counter
        labels = ["drafter", "depth"]
        self.tried = counter(
            "guesses_tried", "verified drafted tokens whose parent was accepted", labels
        )
        self.accepted = counter("guesses_accepted", "drafted tokens that became output", labels)
        self.calibration_nodes = counter(
            "calibration_nodes",
            "verified nodes whose parent was accepted, by predicted probability",
            ["chance"],
        )
        self.calibration_predicted = counter(
            "calibration_foreseen", "sum of the predicted probabilities of these nodes", ["chance"]
        )
        self.calibration_accepted = counter(
            "calibration_accepted", "those of them that were the target's own token", ["chance"]
        )

    def _counter(self, name: str, about: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"sapwood_{name}", about, labels or [], registry=self.registry)

    def _seconds(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(f"{name}_seconds", f"seconds {about}", buckets)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"sapwood_{name}", about, buckets=buckets, registry=self.registry)

    # ------------------------------------------------------------------------------- counting
    def watch(self, request: Request, step: Step) -> None:
        """Count a step of a request; called on the engine's thread."""
        now = time.monotonic()
        last = self._last.get(request)
        self._last[request] = now
        if last is None:
            self._begin(request, now)
        elif step.pieces:
            for _ in step.pieces:
                self.between_tokens.observe((now - last) / len(step.pieces))
        self._count(step, self.names(request.recipe))
        if step.done:
            self.requests.labels(step.finish).inc()
            self.request_seconds.observe(now - request.submitted)

    def _begin(self, request: Request, now: float) -> None:
        self.prompts.inc(len(request.prompt))
        self.first_token.observe(now - request.submitted)
        if request.started is not None:
            self.queue_seconds.observe(request.started - request.submitted)

    def _count(self, step: Step, names: Mapping[int, str]) -> None:
        outcome = step.outcome
        for index, piece in enumerate(step.pieces):
            self.tokens.labels(origin_label(origin(piece, index, outcome), names)).inc()
        checked = len(outcome.tree) - 1
        kept = sum(piece.drafted for piece in step.pieces)
        self.grown.inc(len(outcome.grown) - 1)
        self.nodes.labels("accepted").inc(kept)
        self.nodes.labels("refused").inc(checked - kept)
        if checked:
            self._count_drafts(outcome, names)
            self._calibrate(outcome)

    def watch_step(self, stats: StepStats) -> None:
        """Count a step of the scheduler; called on the engine's thread."""
        self.passes.inc()
        self.pass_seconds.observe(stats.verify)
        self.rows.observe(stats.trees + stats.nodes + stats.prefill)
        self.trees.observe(stats.trees)
        rest = max(stats.seconds - stats.draft - stats.verify, 0.0)
        for stage, seconds in (("draft", stats.draft), ("verify", stats.verify), ("other", rest)):
            self.stages.labels(stage).inc(seconds)
        if stats.trees:  # a plain pass gives each request one token
            self.plain.inc(stats.plain * stats.tokens / stats.trees)

    def _count_drafts(self, outcome: Outcome, names: Mapping[int, str]) -> None:
        """Count nodes by drafter and depth; one of several drafters counts for each of them."""
        tree = outcome.tree
        path = np.array(outcome.verdict.path)
        tried = np.flatnonzero(np.isin(tree.parents, path))
        for counter, nodes in ((self.tried, tried), (self.accepted, path[1:])):
            for bit, name in names.items():
                own = nodes[(tree.sources[nodes] >> bit) & 1 == 1]
                for depth, count in value_counts(np.minimum(tree.depths[own], DEEPEST)):
                    counter.labels(name, f"{depth}+" if depth == DEEPEST else str(depth)).inc(count)

    def _calibrate(self, outcome: Outcome) -> None:
        """Count nodes and their predicted probabilities against their acceptance."""
        curve = CalibrationCurve()
        curve.count(outcome)
        counters = (
            self.calibration_nodes,
            self.calibration_predicted,
            self.calibration_accepted,
        )
        for band in np.flatnonzero(curve.sums[0]).tolist():
            for counter, values in zip(counters, curve.sums, strict=True):
                counter.labels(BANDS[band]).inc(float(values[band]))

    def names(self, recipe: str) -> Mapping[int, str]:
        """Names of a recipe's drafters by their bits; empty is the server's own recipe."""
        llm = self.engine_thread.llm
        if recipe not in self._names:
            drafter = (resolve(recipe) if recipe else llm.recipe).drafter
            self._names[recipe] = names_by_bit(drafter, llm.target.info)
        return self._names[recipe]

    def watch_response(self, log_entry: AccessLogEntry) -> None:
        """Count an error response."""
        if log_entry.status >= 400:
            self.errors.labels(str(log_entry.status)).inc()

    def render(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


BANDS = bands(BINS)


def names_by_bit(drafter: Drafter, info: BackendInfo) -> Mapping[int, str]:
    """Names by bits of a node's sources: drafters, and the hints of a request."""
    return {**dict(enumerate(drafter_names(drafter, info))), **HINT_NAMES}


def origin_label(sources: int, names: Mapping[int, str]) -> str:
    """The label of a token's origin."""
    if not sources:
        return MODEL
    if sources & (sources - 1):
        return SEVERAL
    return names.get(sources.bit_length() - 1, "other")


def value_counts(values: IntArray) -> list[tuple[int, int]]:
    """Each value with its number of occurrences."""
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


class EngineGauges(Collector):
    """Gauges of an engine thread, read when the metrics are rendered."""

    def __init__(self, engine_thread: EngineThread) -> None:
        self.engine_thread = engine_thread

    def collect(self) -> Iterator[Metric]:
        """Requests, KV blocks, and the state of the controllers."""
        now = self.engine_thread.snapshot()
        requests = {"running": now.running, "prefill": now.prefilling, "waiting": now.waiting}
        yield gauge("requests_now", "requests by state", "state", requests)
        blocks = {
            "used": now.used,
            "cached": now.cached,
            "all": math.inf if now.blocks is None else now.blocks,
        }
        yield gauge(
            "kv_blocks",
            "KV blocks: used by requests, kept in the prefix cache, all",
            "kind",
            blocks,
        )
        yield gauge("kv_block_tokens", "tokens of a KV block", "", {"": now.block})
        yield gauge(
            "controller_rate", "tokens per second that further nodes must beat", "", {"": now.rate}
        )
        yield gauge(
            "controller_resting",
            "1 while drafting rests because it did not pay",
            "",
            {"": now.resting},
        )
        yield gauge(
            "nodes_per_pass",
            "nodes of all trees of a pass, recent mean",
            "",
            {"": now.nodes_per_pass},
        )
        yield gauge(
            "tokens_per_second",
            "tokens of all requests, recent mean without pauses",
            "",
            {"": now.tokens_per_second},
        )
        yield gauge("draining", "1 while no new requests are accepted", "", {"": now.draining})
        yield from router_gauges(now)
        preempted = CounterMetricFamily(
            "sapwood_preemptions", "preemptions of requests for their KV blocks"
        )
        preempted.add_metric([], now.preemptions)
        yield preempted


def router_gauges(now: EngineSnapshot) -> Iterator[Metric]:
    """Load under the names that routers of other projects read: llm-d, Gateway API, vllm-router."""
    usage = now.used / now.blocks if now.blocks else 0.0
    for name, about, value in (
        ("num_requests_running", "requests that hold memory", now.running + now.prefilling),
        ("num_requests_waiting", "requests that wait for memory", now.waiting),
        ("kv_cache_usage_perc", "share of the KV blocks that requests hold, 0 to 1", usage),
    ):
        made = GaugeMetricFamily(f"vllm:{name}", about)
        made.add_metric([], value)
        yield made
    config = GaugeMetricFamily(
        "vllm:cache_config_info", "size of the KV cache", labels=["block_size", "num_gpu_blocks"]
    )
    config.add_metric([str(now.block), str(now.blocks or 0)], 1)
    yield config


def gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One gauge, with a label unless that is empty."""
    made = GaugeMetricFamily(f"sapwood_{name}", about, labels=[label] if label else [])
    for label_value, value in values.items():
        made.add_metric([label_value] if label else [], value)
    return made
