"""Runs rounds with trees one ahead of the host, on a device that needs no host for them.

The device drafts, scores, verifies and commits the trees of all requests. The next round is
launched before the verdicts of this one are on the host, which then makes text of them while the
device works. All trees of a round have one shape, planned by one request in turn. A request that
ends is seen one round late: its tree in the round launched behind is dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sapwood.controllers.throughput_stats import ThroughputStats
from sapwood.core.device_rounds import LaunchedRound, RoundBatch, RoundLauncher, RoundRequest
from sapwood.core.protocols import Backend, PrefillChunk
from sapwood.core.types import Outcome, SharedPass, StageTimes, TreeShape
from sapwood.core.whole_tree import TreeBuilder, TreeJob
from sapwood.engine.loop import Engine
from sapwood.engine.request import Request
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.engine.round_planner import RoundPlanner
from sapwood.engine.run_ahead import PendingStep, StepTotals

LEAST = 2  # requests: one alone runs the usual round, which has look-ups
# steps without rounds on the device after requests could not share one; doubled while that recurs
REFUSED = 4
MOST_REFUSED = 64
EARLY = 16  # first rounds, each of which brings a drafted tree to the host
LEARN = 8  # later one round in this many brings a drafted tree to the host


@dataclass(slots=True)
class RoundOnDevice:
    """A launched round and its requests."""

    requests: list[Request]
    decoders: list[RequestDecoder]  # of the same requests; others by now if they were preempted
    jobs: list[TreeJob]
    shape: TreeShape
    learn: int  # index of the request whose drafted tree comes to the host; -1: none
    prefill: int  # rows of prompts
    launched: LaunchedRound

    def index(self) -> dict[RequestDecoder, int]:
        """The index of each request."""
        return {decoder: index for index, decoder in enumerate(self.decoders)}


class NoRound(Exception):
    """These requests cannot share a round on the device."""


class RoundsAhead:
    """Launches rounds of several requests, and reads each while the next one runs."""

    def __init__(
        self,
        target: Backend,
        launcher: Callable[[TreeBuilder], RoundLauncher | None],
        rate: Callable[[], float],  # present tokens per second of all requests
        now: Callable[[], float],
    ) -> None:
        self._target = target
        self._launcher = launcher
        self._planner = RoundPlanner(target.capabilities.root_rows, rate)
        self.now = now
        self.last: RoundOnDevice | None = None  # launched, not read yet
        self._read = 0.0  # clock when the last one was read
        self.seconds = 0.0  # between the last two rounds that were read
        self._engine: Engine | None = None  # of the last round
        self._last_launcher: RoundLauncher | None = None
        self._rounds = 0
        self._refused = 0  # steps before rounds are tried again
        self._refusal = REFUSED  # the same after the next refusal

    def able(self, requests: Sequence[Request], prefill: int) -> bool:
        """True when the next round can run on the device: all requests draft, with one engine."""
        if self._refused:
            self._refused -= 1
            return False
        if len(requests) < LEAST:
            return False
        engine = requests[0].engine
        return all(
            request.engine is engine
            and request.running.joins_rounds
            and not request.running.controller.resting
            for request in requests
        )

    # ------------------------------------------------------------------------------- launch
    def launch(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk]) -> None:
        """Launch the next round; the verdicts of the last one may still be on the device."""
        try:
            self._launch(requests, chunks)
        except NoRound:
            self._wait(requests)
            raise
        self._refusal = REFUSED

    def _wait(self, requests: Sequence[Request]) -> None:
        """Try no round for some steps; requests that draft for speed have no trees meanwhile.

        Trees that come to the host before their pass cost it more than they gain.
        """
        if all(request.priced for request in requests):
            for stats in requests[0].engine.throughput:
                if not stats.rest:
                    stats.rest_for(self._refusal)
        else:
            self._refused = self._refusal
        self._refusal = min(2 * self._refusal, MOST_REFUSED)

    def _launch(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk]) -> None:
        last = self.last
        before = {} if last is None else last.index()
        going = [
            request
            for request in requests
            if request.running not in before or request.running.left > 1
        ]
        prefill = sum(len(chunk.tokens) for chunk in chunks)
        if not going:
            if chunks:
                self._target.score([], chunks)
            self.last = None
            return
        shape = self._shape(going, prefill)
        batch = RoundBatch(shape)
        for request in going:
            decoder = request.running
            index = before.get(decoder, -1)
            job = decoder.round_job(shape) if index < 0 or last is None else last.jobs[index]
            if job is None:
                raise NoRound
            batch.requests.append(
                RoundRequest(
                    decoder.session,
                    job,
                    index,
                    decoder.sampler.sampling.temperature,
                    decoder.sampler.sampling.seed,
                )
            )
        self._last_launcher = launcher = self._one_launcher(batch)
        self._rounds += 1
        learns = self._rounds <= EARLY or self._rounds % LEARN == 0
        batch.learn = self._rounds % len(going) if learns else -1
        if not launcher.fits(batch):
            raise NoRound
        if not self._read:
            self._read = self.now()
        self.last = RoundOnDevice(
            going,
            [request.running for request in going],
            [one.job for one in batch.requests],
            shape,
            batch.learn,
            prefill,
            launcher.launch(batch, chunks),
        )

    def _one_launcher(self, batch: RoundBatch) -> RoundLauncher:
        """The launcher of all requests, which must draft with one builder."""
        builder = batch.requests[0].job.builder
        launcher = self._launcher(builder)
        if launcher is None or any(one.job.builder is not builder for one in batch.requests):
            raise NoRound
        return launcher

    def _shape(self, requests: Sequence[Request], prefill: int) -> TreeShape:
        """The shape of the next trees."""
        engine = requests[0].engine
        if engine is not self._engine:
            self._engine = engine
            self._last_launcher = None
            self._planner.forget()
        shape = self._planner.shape(requests, self._last_launcher, prefill)
        if shape is None:
            raise NoRound
        return shape

    # ------------------------------------------------------------------------------- read
    def read(self, batch: RoundOnDevice) -> tuple[SharedPass, list[PendingStep]]:
        """Wait for a launched round; the step of each request that still runs."""
        start = self.now()
        results = batch.launched.read()
        now = self.now()
        self.seconds = seconds = now - self._read
        ended = self.last is None or self.last is batch  # no round goes on from this one
        self._read = 0.0 if ended else now
        count = len(results)
        rows = count * (1 + batch.shape.nodes)
        context = sum(result.context for result in results) // max(count, 1)
        if count:
            accepted = sum(result.verdict.accepted for result in results)
            host = max(seconds - (now - start), 0.0)
            whole = 0.0 if batch.prefill else seconds
            self._planner.observe(batch.shape, count, accepted, whole, host)
        draft = min(batch.launched.draft_seconds, seconds)
        shared = SharedPass(count, rows, batch.prefill, context, seconds - draft)
        times = StageTimes(draft / max(count, 1), seconds - draft)
        found: list[PendingStep] = []
        for index, (request, decoder, result) in enumerate(
            zip(batch.requests, batch.decoders, results, strict=True)
        ):
            if request.decoder is not decoder:
                continue  # it has ended or was preempted
            context, tree, verdict = result
            verdict = verdict.within(max(decoder.left, 1), tree)
            learn = index == batch.learn
            grown = batch.launched.drafted() if learn else tree
            scores = batch.launched.output(index)
            outcome = Outcome(grown, tree, verdict, scores, context, times, True, shared)
            found.append((request, partial(request.take_round, outcome, ended, learn)))
        return shared, found

    def settle(self, stats: Sequence[ThroughputStats], step: StepTotals) -> None:
        """Count a round in the statistics of all recipes."""
        for one in stats:
            one.settle_round(*step)

    def take(self) -> RoundOnDevice | None:
        """The round that was not read yet, if another way of decoding follows."""
        last, self.last = self.last, None
        return last

    def pause(self) -> None:
        """Let the time until the next launch count for no round."""
        self._read = 0.0
