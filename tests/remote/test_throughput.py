"""A remote drafter that does not pay is rested: never below 0.95 of plain decoding's throughput.

Seconds are simulated: passes, replies and losses move a clock by hand, so the numbers are exact.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import PrefillChunk, TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.remote import Remote
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe, parse
from sapwood.recipes import resolve
from sapwood.remote.draft_client import DraftClient
from sapwood.remote.draft_server import DraftService
from sapwood.remote.messages import RemoteMessage
from tests.helpers.remote_servers import LOOKUP, PLAIN, PROMPT

TOKENS = 3000
FIRST, ROW = 0.006, 0.0004  # seconds of a pass with one row, and of each further one
DRAFT = 0.001  # seconds of the server
VOCAB = 12


class Clock:
    """Seconds that tests advance."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TimedToy(ToyBackend):
    """A toy whose passes take time."""

    clock = Clock()

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        found = super().score(work, chunks)
        self.clock.seconds += FIRST + ROW * (sum(len(item.tree) for item in work) - 1)
        return found


class SimulatedClient(DraftClient):
    """A draft server behind a link whose delay and losses are simulated."""

    def __init__(self, service: DraftService, clock: Clock, delay: float, loss: float) -> None:
        super().__init__("tcp://127.0.0.1:9", 0.1)
        hello = RemoteMessage("hello", {"vocab": VOCAB, "context": 4096, "model": "toy"})
        self.peer = service.greet(hello)[1]
        self.clock, self.delay, self.loss = clock, delay, loss
        self.noise = random.Random(4)
        self.connection = True  # type: ignore[assignment]

    def ask(self, request: int, text: Sequence[int], start: int, **limits: int) -> int | None:
        call = next(self.numbers)
        fields = {"request": request, "call": call, "start": start, "micros": 10**9, **limits}
        message = RemoteMessage("draft", fields, {"tokens": np.array(text[start:], np.int64)})
        self.sent[call] = self.clock()
        if self.noise.random() >= self.loss:
            reply = self.peer.handle(message)
            if reply is not None and self.noise.random() >= self.loss:
                self.replies[call] = reply
        return call

    def wait(self, call: int) -> RemoteMessage | None:
        begun = self.sent.pop(call)
        there = begun + DRAFT + self.delay
        reply = self.replies.pop(call, None)
        limit = begun + self.deadline
        if reply is None or there > limit:
            self.clock.seconds = max(self.clock(), limit)
            self.missed()
            return None
        self.clock.seconds = max(self.clock(), there)
        self.arrived(there - begun)
        return reply

    def end(self, request: int, call: int | None) -> None:
        self.peer.forget(request)


def curve() -> CostModel:
    rows = [1, 2, 4, 8, 16, 32, 64]
    return CostModel(rows, [0], [[FIRST + ROW * (row - 1) for row in rows]])


def seconds_of(
    recipe: Recipe, client: Any = None, temperature: float = 1.0
) -> tuple[float, list[int]]:
    """Simulated seconds and tokens of one long text."""
    clock = Clock()
    target = TimedToy(vocab=VOCAB)
    target.clock = clock
    engine = Engine(target, recipe, curve(), now=clock)
    if client is not None:
        client.clock = clock
        drafter = engine.recipe.drafter
        assert isinstance(drafter, Remote)
        drafter.client = client
    tokens: list[int] = []
    sampling = Sampling(temperature=temperature, seed=1, max_tokens=TOKENS)
    for outcome in engine.rounds(PROMPT, sampling, KeyedRng(1)):
        tokens += outcome.tokens
        if len(tokens) >= TOKENS:
            break
    return clock.seconds, tokens


def drafts(kind: str) -> Recipe:
    """A server's recipe: drafts that are mostly right, or those of a lookup in random text."""
    if kind == "poor":
        return LOOKUP
    model = DraftModel(model=ToyBackend(vocab=VOCAB))
    return Recipe(model, LOOKUP.policy, LOOKUP.verifier, LOOKUP.controller)


@pytest.fixture(scope="module")
def plain() -> dict[float, tuple[float, list[int]]]:
    return {heat: seconds_of(parse(PLAIN), temperature=heat) for heat in (0.0, 1.0)}


@pytest.mark.parametrize("name", ["sled", "dsd", "edgellm"])
@pytest.mark.parametrize("kind", ["good", "poor"])
@pytest.mark.parametrize(
    ("delay", "loss"), [(0, 0), (0.005, 0), (0.02, 0), (0.005, 0.1), (0.02, 0.1)]
)
def test_throughput_is_never_far_below_plain_decodings(
    plain: dict[float, tuple[float, list[int]]], delay: float, loss: float, kind: str, name: str
) -> None:
    heat = 0.0 if kind == "good" else 1.0
    client = SimulatedClient(DraftService(drafts(kind)), Clock(), delay, loss)
    seconds, tokens = seconds_of(resolve(name), client, heat)
    wanted_seconds, wanted = plain[heat]
    assert tokens == wanted
    assert client.calls > 0
    ratio = wanted_seconds / seconds
    assert ratio >= 0.95, f"{ratio:.3f} of plain decoding's throughput, {client.calls} calls"
    if kind == "good" and not delay and name != "sled":  # no token of the toy is that likely
        assert ratio > 1.2
