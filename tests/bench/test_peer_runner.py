"""Peers among the contenders: what they are asked, what becomes of their answers, who is left out."""

from collections.abc import Callable
from typing import Any

import pytest

from sapwood.bench import peer_runner
from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.peer_runner import PeerContender, PeerSet
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.sweep import SweepPoint
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.peers.messages import AnswerMessage, LoadMessage, PromptMessage
from sapwood.peers.process import PeerError

ASKED = ConversationTurn(BenchPrompt("p", "c", "c", "x"), 0, [1, 2, 3], "one two")
INFO = BackendInfo("torch", "tiny", 100, 512, device="cuda:1", threads=3)


class FakePeer:
    """A peer whose answers are given."""

    version = "1.2"

    def __init__(
        self, answer: Callable[[PromptMessage], AnswerMessage], weights: str = "w"
    ) -> None:
        self.answer = answer
        self.weights = weights
        self.asked: list[PromptMessage] = []
        self.closed = 0

    def ask(self, ask: PromptMessage) -> AnswerMessage:
        self.asked.append(ask)
        return self.answer(ask)

    def close(self) -> None:
        self.closed += 1


def contender(answer: AnswerMessage) -> tuple[PeerContender, FakePeer]:
    peer: Any = FakePeer(lambda _: answer)
    return PeerContender(peer), peer


# ---------------------------------------------------------------------------------------- answers
def test_a_peer_is_asked_for_tokens_words_and_ends() -> None:
    made, peer = contender(AnswerMessage(2, 1, 0.5, 0.25, [7, 8], memory=99))
    [run] = made.run([ASKED], Sampling(max_tokens=9, stop_ids=(4, 5)))
    assert peer.asked == [PromptMessage([1, 2, 3], 9, [4, 5], "one two")]
    assert (run.tokens, run.said, run.timed, run.length) == ([7, 8], None, 1, 2)
    assert (run.prefill, run.verify, run.seconds, run.memory) == (0.25, 0.5, 0.5, 99)


def test_words_alone_are_counted_by_the_peer() -> None:
    made, _ = contender(AnswerMessage(5, 4, 1.0, 0.5, None, "some words"))
    [run] = made.run([ASKED], Sampling())
    assert (run.tokens, run.said, run.text, run.length, run.paced) == ([], 5, "some words", 5, 4)


def test_a_peer_answers_one_prompt_at_a_time() -> None:
    made, _ = contender(AnswerMessage(1, 0, 0.0, 0.0, [7]))
    with pytest.raises(ValueError, match="too many values"):
        made.run([ASKED, ASKED], Sampling())


def test_a_peer_that_fails_is_an_error_of_ours() -> None:
    def fail(_: PromptMessage) -> AnswerMessage:
        raise PeerError("its process ended with code 3")

    peer: Any = FakePeer(fail)
    with pytest.raises(SapwoodError, match="its process ended with code 3"):
        PeerContender(peer).run([ASKED], Sampling())


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (SweepPoint(), None),
        (SweepPoint(context=512), None),
        (SweepPoint(temperature=0.5), "peers decode greedily here; no row at temperature 0.5"),
        (SweepPoint(batch=4), "peers are asked one prompt at a time; no row at batch 4"),
        (SweepPoint(1.0, None, 4), "peers decode greedily here; no row at temperature 1"),
    ],
)
def test_settings_that_peers_do_not_take(point: SweepPoint, reason: str | None) -> None:
    made, _ = contender(AnswerMessage(1, 0, 0.0, 0.0, [7]))
    assert made.takes(point) == reason
    assert made.fresh() is made


# -------------------------------------------------------------------------------------------- set
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[LoadMessage, FakePeer]]:
    """Peers start at once; `vllm` is not there, `hf` says little of its weights."""
    found: dict[str, tuple[LoadMessage, FakePeer]] = {}

    def start(name: str, order: LoadMessage) -> FakePeer:
        if name == "vllm":
            raise PeerError("not installed; pip install it", missing=True)
        peer = FakePeer(lambda _: AnswerMessage(1, 0, 0.0, 0.0, [7]), f"weights of {name}")
        peer.version = "" if name == "hf" else "1.2"
        found[name] = (order, peer)
        return peer

    monkeypatch.setattr(peer_runner, "Peer", start)
    return found


def test_all_that_can_be_started_are_ready_and_the_others_say_why(
    started: dict[str, tuple[LoadMessage, FakePeer]],
) -> None:
    peers = PeerSet()
    told: list[str] = []
    peers.open(["hf", "vllm", "hf-pld:7"], "folder", INFO, told.append)
    assert list(peers.ready) == ["hf", "hf-pld:7"]
    assert peers.skipped == {"vllm": "not installed; pip install it"}
    assert peers.weights == {"hf": "weights of hf", "hf-pld:7": "weights of hf-pld:7; 1.2"}
    assert told == ["starting peer hf", "starting peer vllm", "starting peer hf-pld:7"]
    assert started["hf"][0] == LoadMessage("folder", "", "cuda", 3, 512)
    assert started["hf-pld:7"][0].argument == "7"


def test_an_address_after_the_colon_stays_whole(
    started: dict[str, tuple[LoadMessage, FakePeer]],
) -> None:
    peers = PeerSet()
    info = BackendInfo("torch", "tiny", 100, 512)
    peers.open(["openai:http://localhost:8000/v1"], "m", info, lambda _: None)
    [(order, _)] = started.values()
    assert order.argument == "http://localhost:8000/v1"
    assert order.device == "cpu"


def test_one_that_failed_is_left_out_but_still_closed(
    started: dict[str, tuple[LoadMessage, FakePeer]],
) -> None:
    peers = PeerSet()
    peers.open(["hf", "hf-pld"], "m", INFO, lambda _: None)
    peers.drop("hf", SapwoodError("it died"))
    assert list(peers.ready) == ["hf-pld"]
    assert peers.skipped == {"hf": "failed while decoding: it died"}
    peers.close()
    peers.close()
    assert {name: peer.closed for name, (_, peer) in started.items()} == {"hf": 1, "hf-pld": 1}
