"""Runs passes without trees one ahead of the host: the device never waits for the host's work.

Where no running request drafts, a pass commits its roots whatever comes out of it. The next pass is
launched before the tokens of this one are on the host, which then makes text of them while the
device works. The token that ends a text is seen one pass late: the row that was launched behind it
is dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

from sapwood.controllers.throughput_stats import ThroughputStats
from sapwood.core.protocols import PrefillChunk
from sapwood.core.root_batch import LaunchedRoots, RootBatch
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, SharedPass, StageTimes, Verdict
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.request_decoder import RequestDecoder

ROOT_PATH = (ROOT,)
LEAST_REST = 2  # rounds: the pass that is launched, and the one behind it
LEAST_ROWS = 2  # of a pass
KEPT_ROOTS = 4096  # trees of a root alone, by token

# a request and the function that makes its step
PendingStep = tuple[Request, Callable[[], Step]]


class StepTotals(NamedTuple):
    """Totals of a step of several requests."""

    requests: int
    tokens: int
    nodes: int  # of all trees, roots not counted
    seconds: float


class DecodingAhead(Protocol):
    """A way of decoding whose next pass is launched before the last one was read."""

    @property
    def last(self) -> Any:
        """The pass that was launched and not read yet."""

    @property
    def seconds(self) -> float:
        """Seconds from one pass that was read to the next."""

    def able(self, requests: Sequence[Request], prefill: int) -> bool:
        """True when the next pass over these requests, and rows of prompts, can run this way."""

    def launch(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk]) -> None:
        """Launch the next pass; the results of the last one may still be on the device."""

    def read(self, batch: Any) -> tuple[SharedPass, list[PendingStep]]:
        """Wait for a launched pass; the step of each request that still runs."""

    def settle(self, stats: Sequence[ThroughputStats], step: StepTotals) -> None:
        """Count the pass in the statistics of all recipes."""

    def take(self) -> Any:
        """The pass that was not read yet, if another way of decoding follows."""

    def pause(self) -> None:
        """Let the time until the next launch count for no pass."""


Launch = Callable[[RootBatch, Sequence[PrefillChunk]], LaunchedRoots]

root_tree = lru_cache(KEPT_ROOTS)(Tree.of_root)  # shared between passes: must not be changed


@dataclass(slots=True)
class LaunchedBatch:
    """A launched pass and the requests of its rows."""

    requests: list[Request]
    decoders: list[RequestDecoder]  # of the same requests; others by now if they were preempted
    contexts: list[int]  # committed tokens of each before the pass
    prefill: int  # rows of prompts
    launched: LaunchedRoots

    def rows(self) -> dict[RequestDecoder, int]:
        """The row of each request."""
        return {decoder: row for row, decoder in enumerate(self.decoders)}


class RunAhead:
    """Launches passes over roots, and reads each while the next one runs."""

    def __init__(self, launch: Launch, most_rows: int, now: Callable[[], float]) -> None:
        self._launch = launch
        self._most_rows = most_rows
        self.now = now
        self.last: LaunchedBatch | None = None  # launched, not read yet
        self._read = 0.0  # clock when the last one was read
        self.seconds = 0.0  # between the last two passes that were read

    def able(self, requests: Sequence[Request], prefill: int) -> bool:
        """True when the next pass can be launched ahead: no request drafts, and the rows fit."""
        rows = len(requests) + prefill
        if not requests or not LEAST_ROWS <= rows <= self._most_rows:
            return False
        return all(
            decoder.runs_ahead and decoder.controller.resting >= LEAST_REST
            for decoder in (request.running for request in requests)
        )

    def launch(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk]) -> None:
        """Launch the next pass; the tokens of the last one may still be on the device."""
        before = {} if self.last is None else self.last.rows()
        batch = RootBatch()
        taken: list[Request] = []
        decoders: list[RequestDecoder] = []
        for request in requests:
            decoder = request.running
            row = before.get(decoder)
            if row is not None and decoder.left <= 1:
                continue  # the token on its way is the last one
            token = decoder.root if row is None else -1 - row
            temperature = decoder.sampler.sampling.temperature
            batch.add(decoder.session, token, temperature, decoder.noise_key())
            taken.append(request)
            decoders.append(decoder)
        if not taken and not chunks:
            self.last = None
            return
        contexts = [session.length for session in batch.sessions]
        if not self._read:
            self._read = self.now()
        self.last = LaunchedBatch(
            taken,
            decoders,
            contexts,
            sum(len(chunk.tokens) for chunk in chunks),
            self._launch(batch, chunks),
        )

    def read(self, batch: LaunchedBatch) -> tuple[SharedPass, list[PendingStep]]:
        """Wait for a launched pass; the step of each request that still runs."""
        tokens = batch.launched.next_tokens().tolist()
        now = self.now()
        self.seconds = seconds = now - self._read
        self._read = 0.0 if self.last is None else now  # no pass follows
        context = sum(batch.contexts) // max(len(tokens), 1)
        shared = SharedPass(len(tokens), len(tokens), batch.prefill, context, seconds)
        times = StageTimes(verify=seconds)
        found: list[PendingStep] = []
        outputs = batch.launched.outputs()
        rows = zip(batch.requests, batch.decoders, tokens, batch.contexts, outputs, strict=True)
        for request, decoder, token, context, output in rows:
            if request.decoder is not decoder:
                continue  # it has ended or was preempted
            tree = root_tree(decoder.root)
            verdict = Verdict(ROOT_PATH, token)
            outcome = Outcome(tree, tree, verdict, output, context, times, False, shared)
            found.append((request, partial(request.take_root, outcome)))
        return shared, found

    def settle(self, stats: Sequence[ThroughputStats], step: StepTotals) -> None:
        """Count a pass of a rest."""
        for one in stats:
            if one.rest > 0:
                one.settle_rest()

    def take(self) -> LaunchedBatch | None:
        """The pass that was not read yet, if another way of decoding follows."""
        last, self.last = self.last, None
        return last

    def pause(self) -> None:
        """Let the time until the next launch count for no pass."""
        self._read = 0.0
