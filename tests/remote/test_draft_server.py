"""Text is plain decoding's, however late or lost the drafts of a remote drafter are."""

import socket
import time
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.lossy_link import LossyLink

from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.remote import Remote
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe, parse
from sapwood.remote.connection import Connection
from sapwood.remote.draft_client import DraftClient, read_tree
from sapwood.remote.draft_server import DraftPeer, DraftService
from sapwood.remote.messages import LinkError, RemoteMessage
from sapwood.remote.wait_rule import WaitRule
from sapwood.testing import check_part
from tests.helpers.remote_servers import (
    LOOKUP,
    ORACLE,
    draft_server,
    plain_tokens,
    rounds_of,
    spelled,
    tokens_of,
)

GREEDY = Sampling(max_tokens=48)
SAMPLED = Sampling(temperature=1.0, seed=3, max_tokens=48)


def client_of(engine: Engine) -> DraftClient:
    drafter = engine.recipe.drafter
    assert isinstance(drafter, Remote)
    return drafter.client


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("recipe", [LOOKUP, ORACLE], ids=["lookup", "model"])
@pytest.mark.parametrize(("delay", "loss"), [(0.0, 0.0), (0.005, 0.1), (0.02, 0.1), (0.0, 0.6)])
def test_text_is_plain_decodings(
    delay: float, loss: float, recipe: Recipe, sampling: Sampling
) -> None:
    wanted = plain_tokens(ToyBackend(), sampling)
    with draft_server(recipe) as url, LossyLink(url, delay, loss, seed=1).running() as link:
        limit = 60.0 if loss else 5000.0
        engine = Engine(ToyBackend(), parse(spelled(link.url, limit)))
        rounds = rounds_of(engine, sampling)
        client = client_of(engine)
        client.close()
    assert tokens_of(rounds) == wanted
    assert client.sentence == ""
    assert (link.dropped > 0) == (loss > 0)
    if not loss:
        assert len(rounds) < len(wanted)  # trees came and were accepted
        assert client.late < client.calls


def test_a_reply_after_the_deadline_means_no_tree() -> None:
    with draft_server() as url, LossyLink(url, delay=1.5).running() as link:
        engine = Engine(ToyBackend(), parse(spelled(link.url, 20)))
        start = time.perf_counter()
        rounds = rounds_of(engine, replace(GREEDY, max_tokens=4))
        seconds = time.perf_counter() - start
        client_of(engine).close()
    assert tokens_of(rounds) == plain_tokens(ToyBackend(), replace(GREEDY, max_tokens=4))
    assert all(len(outcome.tree) == 1 for outcome in rounds)
    assert seconds < 4 * 1.5  # it waited for no reply


def test_a_broken_connection_costs_trees_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.remote.draft_client.RETRY_S", (0.01, 0.02))
    wanted = plain_tokens(ToyBackend(), SAMPLED)
    with draft_server() as url, LossyLink(url).running() as link:
        engine = Engine(ToyBackend(), parse(spelled(link.url)))
        client = client_of(engine)
        client.pause = 0.01
        assert tokens_of(rounds_of(engine, SAMPLED)) == wanted
        link.cut()
        assert tokens_of(rounds_of(engine, SAMPLED)) == wanted
        time.sleep(0.05)
        again = rounds_of(engine, SAMPLED)
        client.close()
    assert tokens_of(again) == wanted
    assert client.sentence == ""
    assert any(outcome.verdict.accepted for outcome in again)


def test_without_a_server_decoding_begins_without_trees() -> None:
    engine = Engine(ToyBackend(), parse(spelled("tcp://127.0.0.1:9")))
    [sentence] = engine.recipe.substitutes
    assert sentence.startswith("no server answers at tcp://127.0.0.1:9 (connection refused); ")
    assert tokens_of(rounds_of(engine, GREEDY)) == plain_tokens(ToyBackend(), GREEDY)


def test_a_server_with_another_vocabulary_drafts_nothing() -> None:
    other = Recipe(DraftModel(model=ToyBackend(vocab=5)), *ORACLE.parts()[1:])  # type: ignore[arg-type]
    service = DraftService(other, vocab=5)
    with pytest.raises(LinkError, match="5 tokens and the target has 3"):
        service.handshake(RemoteMessage("hello", {"vocab": 3, "context": 64, "model": "toy"}))


def test_a_server_opens_with_its_key_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with draft_server(key="secret") as url:
        with pytest.raises(LinkError, match="the key is wrong"):
            Connection(url, "drafter", 5.0, vocab=3, context=9, model="toy")
        monkeypatch.setenv("SAPWOOD_KEY", "secret")
        connection = Connection(url, "drafter", 5.0, vocab=3, context=9, model="toy")
        assert connection.welcome.fields["drafter"].startswith("draft-model")
        connection.close()
        with pytest.raises(LinkError, match="this is a drafter server"):
            Connection(url, "target", 5.0)


def test_a_client_that_sends_rubbish_is_sent_away_and_others_go_on() -> None:
    with draft_server() as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            stranger.settimeout(5)
            assert b"does not speak" in stranger.recv(1 << 12)
            assert stranger.recv(1 << 12) == b""
        engine = Engine(ToyBackend(), parse(spelled(url)))
        assert any(outcome.verdict.accepted for outcome in rounds_of(engine, GREEDY))
        client_of(engine).close()


@pytest.mark.parametrize("drafter", ["recycling", "lookahead", "merge(drafters=[suffix, jacobi])"])
def test_drafters_that_read_scores_are_refused(drafter: str) -> None:
    with pytest.raises(SapwoodError, match="reads the target's scores"):
        DraftService(parse(f"{drafter} + best + match + fixed"))


def test_the_drafter_keeps_its_contract_with_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    # every reply is waited for
    monkeypatch.setattr("sapwood.remote.draft_client.EARLY", 1 << 30)
    monkeypatch.setattr(WaitRule, "limit", lambda self, step, trip, answered, deadline: deadline)
    with draft_server() as url:
        part: Part = Remote(url=url, deadline_ms=5000.0)
        check_part("drafter", part)


# ------------------------------------------------------------------------------ the server's texts
@pytest.fixture
def peer() -> DraftPeer:
    service = DraftService(LOOKUP)
    return service.handshake(RemoteMessage("hello", {"vocab": 9, "context": 64, "model": "toy"}))[1]


def draft(peer: DraftPeer, start: int, tokens: list[int], request: int = 1) -> RemoteMessage:
    fields = {"request": request, "call": 5, "start": start, "nodes": 8, "depth": 4, "width": 2}
    fields["micros"] = 10**9
    found = peer.handle(RemoteMessage("draft", fields, {"tokens": np.array(tokens, np.int64)}))
    assert found is not None
    return found


def test_a_text_grows_by_what_is_new(peer: DraftPeer) -> None:
    first = draft(peer, 0, [1, 2, 3, 1, 2])
    assert (first.number("known"), first.integers("tokens")[0]) == (5, 3)
    assert draft(peer, 5, [3, 4]).number("known") == 7
    assert peer.texts[1].text == [1, 2, 3, 1, 2, 3, 4]
    # the reply was lost: the same tokens come again, and more
    assert draft(peer, 5, [3, 4, 5]).number("known") == 8
    assert peer.texts[1].text == [1, 2, 3, 1, 2, 3, 4, 5]


def test_a_gap_in_the_text_is_sent_again(peer: DraftPeer) -> None:
    found = draft(peer, 5, [3, 4])
    assert found.number("known") == 0
    assert not found.integers("tokens")
    assert draft(peer, 0, [1, 2, 3]).number("known") == 3


def test_a_text_that_differs_begins_anew(peer: DraftPeer) -> None:
    draft(peer, 0, [1, 2, 3, 4])
    assert draft(peer, 2, [8, 8]).number("known") == 0
    draft(peer, 0, [1, 2, 3, 4])
    assert draft(peer, 0, [1, 7]).number("known") == 2
    assert peer.texts[1].text == [1, 7]


def test_texts_that_are_not_used_make_room(
    peer: DraftPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.remote.draft_server.TEXTS", 2)
    for request in (1, 2, 3):
        draft(peer, 0, [1, 2, 3], request)
    assert list(peer.texts) == [2, 3]
    peer.handle(RemoteMessage("end", {"request": 2}))
    assert list(peer.texts) == [3]
    peer.close()
    assert not peer.texts


@pytest.mark.parametrize("tokens", [[9], [-1]])
def test_strange_tokens_are_refused(peer: DraftPeer, tokens: list[int]) -> None:
    with pytest.raises(LinkError, match="vocabulary"):
        draft(peer, 0, tokens)


# ------------------------------------------------------------------------------ the client's trees
@pytest.mark.parametrize(
    ("tokens", "parents", "probs"),
    [
        ([3], [0], [0.5]),  # no such token
        ([1], [1], [0.5]),  # its own parent
        ([1, 1], [0, -1], [0.5, 0.5]),
        ([1], [0], [1.5]),
        ([1], [0], [np.nan]),
        ([1, 2], [0], [0.5]),
    ],
)
def test_a_tree_that_is_none_is_refused(
    tokens: list[int], parents: list[int], probs: list[float]
) -> None:
    arrays = {"tokens": np.array(tokens), "parents": np.array(parents), "probs": np.array(probs)}
    with pytest.raises(LinkError, match="a tree that is none"):
        read_tree(0, RemoteMessage("tree", {}, arrays), vocab=3)


def test_the_deadline_follows_the_usual_reply() -> None:
    client = DraftClient("tcp://127.0.0.1:9", 1.0)
    for _ in range(40):
        client.arrived(0.010)
    assert 0.010 < client.deadline < 0.020
    before = client.deadline
    for _ in range(30):
        client.missed()
    assert client.deadline > 4 * before  # a link that became slower is learned again
    assert client.deadline <= 1.0
    client.arrived(0.010)
    assert client.deadline < 0.020
