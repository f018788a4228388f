"""A remote drafter that does not pay is rested: never below 0.95 of plain decoding's throughput.

Seconds are simulated: passes, replies and losses move a clock by hand, so the numbers are exact.
"""

import random
from collections.abc import Sequence

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
from sapwood.remote.wait_rule import WaitRule
from tests.helpers.covering import pairwise
from tests.helpers.remote_servers import LOOKUP, PLAIN, PROMPT

TOKENS = 1500
FIRST, ROW = 0.006, 0.0004  # seconds of a pass with one row, and of each further one
DRAFT = 0.001  # seconds of the server
SEND, RECEIVE = 0.0001, 0.0001  # seconds of the client for a message
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


class SimulatedConnection:
    """A draft server behind a link whose delay and losses are simulated."""

    def __init__(self, service: DraftService, clock: Clock, delay: float, loss: float) -> None:
        hello = RemoteMessage("hello", {"vocab": VOCAB, "context": 4096, "model": "toy"})
        self.peer = service.handshake(hello)[1]
        self.clock, self.delay, self.loss = clock, delay, loss
        self.noise = random.Random(4)
        self.coming: list[tuple[float, RemoteMessage]] = []  # replies and their times

    def send(self, message: RemoteMessage) -> None:
        self.clock.seconds += SEND
        if self.noise.random() >= self.loss:
            reply = self.peer.handle(message)
            if reply is not None and self.noise.random() >= self.loss:
                self.coming.append((self.clock() + DRAFT + self.delay, reply))

    def receive(self, until: float) -> RemoteMessage | None:
        if self.coming and self.coming[0][0] <= max(until, self.clock()):
            time, reply = self.coming.pop(0)
            self.clock.seconds = max(self.clock(), time) + RECEIVE
            return reply
        self.clock.seconds = max(self.clock(), until)
        return None

    def close(self) -> None:
        self.coming.clear()


def connect(kind: str, delay: float, loss: float) -> tuple[DraftClient, SimulatedConnection]:
    """A client of a simulated server, both on one clock."""
    clock = Clock()
    client = DraftClient("tcp://127.0.0.1:9", 0.1, clock)
    connection = SimulatedConnection(DraftService(drafts(kind)), clock, delay, loss)
    client.connection = connection  # type: ignore[assignment]
    return client, connection


def curve() -> CostModel:
    rows = [1, 2, 4, 8, 16, 32, 64]
    return CostModel(rows, [0], [[FIRST + ROW * (row - 1) for row in rows]])


def seconds_of(
    recipe: Recipe, client: DraftClient | None = None, temperature: float = 1.0, count: int = TOKENS
) -> tuple[float, list[int]]:
    """Simulated seconds and tokens of one text."""
    clock = Clock() if client is None else client.now
    assert isinstance(clock, Clock)
    begun = clock()
    target = TimedToy(vocab=VOCAB)
    target.clock = clock
    engine = Engine(target, recipe, curve(), now=clock)
    if client is not None:
        drafter = engine.recipe.drafter
        assert isinstance(drafter, Remote)
        drafter.client = client
    tokens: list[int] = []
    sampling = Sampling(temperature=temperature, seed=1, max_tokens=count)
    for outcome in engine.rounds(PROMPT, sampling, KeyedRng(1)):
        tokens += outcome.tokens
        if len(tokens) >= count:
            break
    return clock() - begun, tokens


def drafts(kind: str) -> Recipe:
    """A server's recipe: drafts that are mostly right, or those of a lookup in random text."""
    if kind == "poor":
        return LOOKUP
    model = DraftModel(model=ToyBackend(vocab=VOCAB))
    return Recipe(model, LOOKUP.policy, LOOKUP.verifier, LOOKUP.controller)


@pytest.fixture(scope="module")
def plain() -> dict[float, tuple[float, list[int]]]:
    return {heat: seconds_of(parse(PLAIN), temperature=heat) for heat in (0.0, 1.0)}


NAMES = ["sled", "dsd", "edgellm"]
LINKS = [(0, 0), (0.005, 0), (0.02, 0), (0.005, 0.1), (0.02, 0.1)]  # delay and loss
CASES = pairwise(LINKS, NAMES, ["good", "poor"])
FAST = [((0, 0), name, "good") for name in NAMES]  # good drafts without a delay are worth something


@pytest.mark.parametrize(
    ("delay", "loss", "name", "kind"),
    [(*link, *rest) for link, *rest in [*CASES, *(one for one in FAST if one not in CASES)]],
)
def test_throughput_is_never_far_below_plain_decodings(
    plain: dict[float, tuple[float, list[int]]], delay: float, loss: float, kind: str, name: str
) -> None:
    heat = 0.0 if kind == "good" else 1.0
    client, _ = connect(kind, delay, loss)
    seconds, tokens = seconds_of(resolve(name), client, heat)
    wanted_seconds, wanted = plain[heat]
    assert tokens == wanted
    assert client.calls > 0
    ratio = wanted_seconds / seconds
    assert ratio >= 0.95, f"{ratio:.3f} of plain decoding's throughput, {client.calls} calls"
    if kind == "good" and not delay and name != "sled":  # no token of the toy is that likely
        assert ratio > 1.2


def first_text(name: str) -> float:
    """Throughput of a new engine's first hundred tokens against plain decoding's; a bad link."""
    wanted, _ = seconds_of(parse(PLAIN), count=100)
    client, _ = connect("poor", 0.02, 0.1)
    seconds, _ = seconds_of(resolve(name), client, count=100)
    return wanted / seconds


@pytest.mark.parametrize("name", ["sled", "dsd", "edgellm"])
def test_a_first_text_of_a_hundred_tokens_is_hardly_slower(name: str) -> None:
    assert first_text(name) >= 0.95


def test_waiting_for_every_reply_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitRule, "limit", lambda self, step, trip, answered, deadline: deadline)
    assert first_text("sled") < 0.9


def test_what_is_left_of_a_late_tree_is_used(
    plain: dict[float, tuple[float, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitRule, "limit", lambda self, step, trip, answered, deadline: 0.0)
    client, _ = connect("good", 0.02, 0.0)
    seconds, tokens = seconds_of(resolve("dsd"), client, 0.0)
    assert tokens == plain[0.0][1]
    assert plain[0.0][0] / seconds > 1.2  # without a single wait
