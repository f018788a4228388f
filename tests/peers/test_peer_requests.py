"""Peers over HTTP and over a pipe: what is sent, what comes back, and what is said when it fails."""

import http.server
import io
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sapwood.peers import __main__ as child
from sapwood.peers import http as client
from sapwood.peers import openai, table
from sapwood.peers.hf import TokenStreamer
from sapwood.peers.llamacpp import timed
from sapwood.peers.messages import LoadedPeer, LoadMessage, PeerMissing, PeerRefused, PromptMessage
from sapwood.peers.process import TAIL, Peer, PeerError
from sapwood.peers.table import PEERS, entry_of

ASK = PromptMessage([1, 2, 3], 5, [9], "one two")


class Server:
    """A server whose answers are functions of the path and the body."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Any], tuple[int, bytes]]] = {}
        self.seen: list[tuple[str, str, Any, str | None]] = []  # method, path, body, key
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                outer.seen.append((self.command, self.path, body, self.headers["Authorization"]))
                code, said = outer.answers[self.path](body)
                self.send_response(code)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def stream(*events: Any, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return (
        ": a comment\n\n" + "".join(lines) + "data: [DONE]\n\n" * done + "data: {oops\n\n"
    ).encode()


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"text": text}]}


# ------------------------------------------------------------------------------------------- HTTP
def test_a_request_with_a_body_is_posted_and_one_without_is_not(server: Server) -> None:
    server.answers = {"/a": lambda body: (200, json.dumps({"got": body}).encode())}
    assert client.ask(f"{server.url}/a") == {"got": None}
    assert client.ask(f"{server.url}/a", {"x": 1}, "secret") == {"got": {"x": 1}}
    assert server.seen == [
        ("GET", "/a", None, None),
        ("POST", "/a", {"x": 1}, "Bearer secret"),
    ]


@pytest.mark.parametrize(("code", "kind"), [(400, True), (404, True), (499, True), (500, False)])
def test_refusals_are_passed_on_in_one_line(server: Server, code: int, kind: bool) -> None:
    server.answers = {"/a": lambda _: (code, b"no\n such   thing " + b"x" * 500)}
    with pytest.raises(PeerRefused, match=rf"/a answered {code}: no such thing x+$") as caught:
        client.ask(f"{server.url}/a")
    assert isinstance(caught.value, client.Rejected) is kind
    assert len(str(caught.value)) < 280


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        PeerRefused, match=r"http://127.0.0.1:9/a cannot be reached .*start the server"
    ):
        client.ask("http://127.0.0.1:9/a")


def test_events_are_read_up_to_the_end(server: Server) -> None:
    server.answers = {"/s": lambda _: (200, stream({"n": 1}, {"n": 2}))}
    assert list(client.events(f"{server.url}/s", {})) == [{"n": 1}, {"n": 2}]
    server.answers = {"/s": lambda _: (200, b'data: {"n": 3}\n\n')}
    assert list(client.events(f"{server.url}/s", {})) == [{"n": 3}]


# ------------------------------------------------------------------------------------------ OpenAI
def test_pieces_are_words_and_usage_counts_them(server: Server) -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 7}}
    server.answers = {"/c": lambda _: (200, stream(piece("one"), piece(""), piece(" two"), usage))}
    found = openai.streamed(f"{server.url}/c", {}, "")
    assert (found.text, found.count, found.timed, found.tokens) == ("one two", 7, 6, None)
    assert found.seconds >= 0
    assert found.reading > 0
    server.answers = {"/c": lambda _: (200, stream(piece("one"), piece(" two")))}
    assert openai.streamed(f"{server.url}/c", {}, "").count == 2
    server.answers = {"/c": lambda _: (200, stream())}
    nothing = openai.streamed(f"{server.url}/c", {}, "")
    assert (nothing.count, nothing.timed, nothing.text) == (0, 0, "")


def test_an_error_in_a_stream_is_the_servers(server: Server) -> None:
    server.answers = {"/c": lambda _: (200, stream(piece("one"), {"error": "too long"}))}
    with pytest.raises(PeerRefused, match="the server reports: too long"):
        openai.streamed(f"{server.url}/c", {}, "")


@pytest.mark.parametrize("tokens", [True, False])
def test_tokens_are_sent_where_they_are_taken_and_words_elsewhere(
    server: Server, tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(body: Any) -> tuple[int, bytes]:
        if isinstance(body["prompt"], list) and not tokens:
            return 422, b"prompt must be a string"
        return 200, stream(piece("said"))

    server.answers = {
        "/v1/models": lambda _: (200, b'{"data": [{"id": "m", "owned_by": "us"}, {"id": "n"}]}'),
        "/v1/completions": complete,
    }
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    opened = openai.open_peer(LoadMessage("x", f"{server.url}/v1/"))
    form = "tokens" if tokens else "text"
    assert (opened.weights, opened.version) == (f"the server's own, m; prompts as {form}", "us")
    assert opened.decode(ASK).text == "said"
    _, _, body, key = server.seen[-1]
    assert key == "Bearer k"
    assert body == {
        "model": "m",
        "prompt": [1, 2, 3] if tokens else "one two",
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_server_that_takes_nothing_or_has_no_model_is_refused(server: Server) -> None:
    server.answers = {"/v1/models": lambda _: (200, b'{"data": []}')}
    with pytest.raises(PeerRefused, match="/v1 serves no model"):
        openai.open_peer(LoadMessage("x", server.url))
    server.answers = {
        "/v1/models": lambda _: (200, b'{"data": [{"id": "m"}]}'),
        "/v1/completions": lambda _: (400, b"no"),
    }
    with pytest.raises(client.Rejected, match="answered 400: no"):
        openai.open_peer(LoadMessage("x", server.url))


# ------------------------------------------------------------------------------------ own process
def told(out: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PeerMissing("pip install it"), {"missing": "pip install it"}),
        (PeerRefused("no such file"), {"refused": "no such file"}),
        (RuntimeError("out of luck"), {"failed": "RuntimeError: out of luck"}),
    ],
    ids=str,
)
def test_a_peer_that_cannot_be_loaded_says_why(
    error: Exception, said: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(order: LoadMessage) -> LoadedPeer:
        raise error

    monkeypatch.setattr(openai, "open_peer", fail)
    out = io.StringIO()
    assert child.attempt("openai:x", LoadMessage("m"), out) is None
    assert told(out) == [said]


def test_what_is_not_importable_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = table.PeerEntry("openai", "no_such_package_at_all", "pip install this")
    monkeypatch.setattr(child, "entry_of", lambda name: entry)
    out = io.StringIO()
    assert child.attempt("x", LoadMessage("m"), out) is None
    assert told(out) == [{"missing": "pip install this"}]


def test_a_loaded_peer_is_handed_over_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    made = LoadedPeer(lambda _: None, "w", close=lambda: closed.append(1))  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(openai, "open_peer", lambda order: made)
    out = io.StringIO()
    assert child.attempt("openai:http://x", LoadMessage("m"), out) is made
    assert told(out) == []
    child.ClosePeer(made).close()
    assert closed == [1]
    assert (child.peak_memory() or 0) > 1 << 20


def half_open(lines: list[bytes], errors: bytes = b"") -> Any:
    """Our side of a peer, without its process."""
    peer: Any = Peer.__new__(Peer)
    peer._lines = queue.SimpleQueue()
    for line in lines:
        peer._lines.put(line)
    peer._errors = io.BytesIO(errors)
    peer._answer_s = 0.01

    class Process:
        stdin = io.BytesIO()
        killed = False

        def kill(self) -> None:
            self.killed = True

        def wait(self) -> int:
            return 3

    peer._process = Process()
    return peer


def test_an_answer_is_read_from_its_line() -> None:
    peer = half_open([b'{"answer": {"count": 2, "timed": 1, "seconds": 0.5, "reading": 0.25}}\n'])
    found = peer.ask(ASK)
    assert (found.count, found.timed, found.seconds, found.reading) == (2, 1, 0.5, 0.25)
    assert json.loads(peer._process.stdin.getvalue()) == {
        "prompt": [1, 2, 3],
        "most": 5,
        "ends": [9],
        "text": "one two",
    }


@pytest.mark.parametrize(
    ("said", "reason", "missing"),
    [
        ({"missing": "pip install it"}, "not installed; pip install it", True),
        ({"refused": "no such file"}, "no such file", False),
        ({"failed": "Error: x"}, "Error: x", False),
    ],
)
def test_reasons_are_understood(said: dict[str, str], reason: str, missing: bool) -> None:
    with pytest.raises(PeerError) as caught:
        half_open([json.dumps(said).encode()]).ask(ASK)
    assert (str(caught.value), caught.value.missing) == (reason, missing)


def test_a_dead_peers_last_line_is_told() -> None:
    with pytest.raises(PeerError, match="its process ended with code 3: Killed by x"):
        half_open([b""], b"lots of words\n  Killed by x  \n\n").ask(ASK)
    with pytest.raises(PeerError) as caught:
        half_open([b""], b"y" * 5000).ask(ASK)
    assert str(caught.value).endswith(": " + "y" * TAIL)
    with pytest.raises(PeerError, match=r"its process ended with code 3$"):
        half_open([b""]).ask(ASK)


def test_a_peer_that_sleeps_is_ended() -> None:
    peer = half_open([])
    with pytest.raises(PeerError, match=r"gave no answer in 0.01 s and was ended"):
        peer.ask(ASK)
    assert peer._process.killed


# -------------------------------------------------------------------------------------------- time
def test_the_first_token_ends_the_reading_of_the_prompt() -> None:
    found = timed(iter([4, 5, 6, 7, 8, 9, 10]), ASK)
    assert found.tokens == [4, 5, 6, 7, 8]  # no more than were asked for
    assert (found.count, found.timed) == (5, 4)
    ended = timed(iter([4, 9, 6]), ASK)
    assert ended.tokens == [4, 9]
    nothing = timed(iter([]), ASK)
    assert (nothing.count, nothing.timed, nothing.seconds) == (0, 0, 0.0)


def test_a_streamer_counts_what_comes_after_the_prompt() -> None:
    class Tokens:
        def __init__(self, count: int) -> None:
            self.count = count

        def numel(self) -> int:
            return self.count

    watch = TokenStreamer()
    for count in (7, 1, 3, 2):
        watch.put(Tokens(count))
    watch.end()
    assert watch.counts == [1, 3, 2]
    assert watch.times == sorted(watch.times)
    assert len(watch.times) == 3


def test_every_entry_is_found_with_and_without_an_argument() -> None:
    for name, entry in PEERS.items():
        assert entry_of(name) is entry_of(f"{name}:anything:else") is entry
