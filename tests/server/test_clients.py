"""Real clients against a real server: a process of its own, sockets, signals."""

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.server.clients import official
from tests.server.clients.run import LM_EVAL_TASKS, OTHERS, Environment, ready, score_tasks
from tests.server.clients.server import KEY, MODEL, Running, make_model, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    quick = (
        "--limit",
        "header_seconds=1",
        "--limit",
        "body_seconds=1",
        "--limit",
        "write_seconds=2",
    )
    with running(folder, *quick, "--limit", "connections=50") as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key=KEY, max_retries=0) as one:
        yield one


@pytest.mark.parametrize("check", official.CHECKS, ids=lambda check: check.__name__)
def test_the_official_client(client: OpenAI, check: official.Check) -> None:
    check(client, MODEL)


def test_the_answer_is_that_of_the_command_line(client: OpenAI, folder: Path) -> None:
    from sapwood import LLM

    llm = LLM(str(folder / "model"), "plain", threads=1)
    for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}):
        wanted = llm.chat([{"role": "user", "content": "Name it."}], max_tokens=24, **options)
        messages: Any = [{"role": "user", "content": "Name it."}]
        got = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=24, **options
        )
        assert got.choices[0].message.content == wanted.text


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
def test_other_clients(server: Running, other: Environment) -> None:
    if reason := ready(other):
        pytest.skip(reason)
    done = other.run(server.api, MODEL, KEY)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_tasks_score_through_the_server_as_through_transformers(tmp_path: Path) -> None:
    if reason := ready(LM_EVAL_TASKS):
        pytest.skip(reason)
    done = score_tasks(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# ---------------------------------------------------------------------------------------- the wire
def raw(server: Running, sent: bytes, seconds: float = 10.0) -> bytes:
    """All that comes back until the server closes, or nothing more comes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as line:
        found = b""
        with suppress(OSError):  # it may refuse in the middle
            line.sendall(sent)
        with suppress(OSError):
            while part := line.recv(65536):
                found += part
        return found


def head(path: str = "/v1/models", *lines: str, method: str = "GET") -> bytes:
    all_lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        *lines,
        "",
        "",
    ]
    return "\r\n".join(all_lines).encode()


CLOSE = "Connection: close"
CHAT = "/v1/chat/completions"
TYPE = "Content-Type: application/json"
MALFORMED = {
    "length and chunks": head(
        CHAT, TYPE, "Content-Length: 2", "Transfer-Encoding: chunked", method="POST"
    )
    + b"{}",
    "chunked, identity": head(CHAT, TYPE, "Transfer-Encoding: chunked, identity", method="POST")
    + b"0\r\n\r\n",
    "a signed length": head(CHAT, TYPE, "Content-Length: +2", method="POST") + b"{}",
    "two lengths": head(CHAT, TYPE, "Content-Length: 2", "Content-Length: 3", method="POST")
    + b"{}x",
    "two hosts": head("/v1/models", "Host: evil.com"),
    "a bad chunk": head(CHAT, TYPE, "Transfer-Encoding: chunked", method="POST")
    + b"2xx\r\n{}\r\n0\r\n\r\n",
    "a bare line": b"GET /health\n\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "a null in a header": head("/v1/models", "X: a\x00b"),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a huge header": head("/v1/models", "X: " + "y" * 3_000_000),
    "a long chunk extension": head(CHAT, TYPE, "Transfer-Encoding: chunked", method="POST")
    + b"2;"
    + b"x" * 1_000_000,
    "many headers": head("/v1/models", *(f"X-{number}: 1" for number in range(100_000))),
    "a long path": head("/" + "a" * 100_000, CLOSE),
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_request(server: Running, sent: bytes) -> None:
    found = raw(server, sent)
    status = found.split(b" ", 2)[1] if found else b""
    assert status in (b"400", b"431", b""), found[
        :200
    ]  # nothing where it was cut while still sending
    if found:
        assert "error" in json.loads(found.partition(b"\r\n\r\n")[2])
    assert b"200 OK" in raw(server, head("/health", CLOSE))


def test_half_a_header_and_half_a_body_are_not_waited_for(server: Running) -> None:
    began = time.monotonic()
    assert b" 408 " in raw(server, b"GET /health HTTP/1.1\r\nHost: loc")
    assert b" 408 " in raw(
        server, head(CHAT, TYPE, "Content-Length: 100", method="POST") + b'{"model"'
    )
    assert time.monotonic() - began < 8


def test_a_huge_body_is_refused_before_it_is_sent(server: Running) -> None:
    found = raw(server, head(CHAT, TYPE, "Content-Length: 268435456", method="POST"))
    assert b" 413 " in found
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    found = raw(server, head(CHAT, TYPE, "Transfer-Encoding: chunked", method="POST") + chunk * 140)
    assert found == b"" or b" 413 " in found


def test_old_and_impatient_clients(server: Running) -> None:
    assert b"200 OK" in raw(server, b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
    both = raw(server, head("/health") + head("/v1/models", CLOSE))
    assert both.count(b"200 OK") == 2
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    length = f"Content-Length: {len(body)}"
    asked = head("/v1/completions", TYPE, length, "Expect: 100-continue", CLOSE, method="POST")
    found = raw(server, asked + body)
    assert found.startswith(b"HTTP/1.1 100")
    assert b"200 OK" in found


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_sending_side_gets_its_answer(
    server: Running, stream: bool
) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 30, "temperature": 0, "stream": stream})
    asked = head("/v1/completions", TYPE, f"Content-Length: {len(body)}", CLOSE, method="POST")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
        line.sendall(asked + body.encode())
        line.shutdown(socket.SHUT_WR)
        found = b""
        while part := line.recv(65536):
            found += part
    assert b"200 OK" in found
    assert (b"[DONE]" if stream else b'"usage"') in found


def test_idle_connections_are_bounded(server: Running) -> None:
    lines = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(80)]
    try:
        began = time.monotonic()
        assert b"200 OK" in raw(server, head("/health", CLOSE))
        assert time.monotonic() - began < 5
    finally:
        for line in lines:
            line.close()


def test_a_client_that_goes_away_frees_its_place(server: Running, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "a"}]
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        stream=True,
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 20
    while not any(line.get("status") == 499 for line in server.lines):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_log_holds_no_text_and_no_key(server: Running, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "a-secret-of-the-user"}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
    text = json.dumps(server.lines)
    assert "a-secret-of-the-user" not in text
    assert KEY not in text
    texts = [line["text"] for line in server.lines if line["event"] == "text"]
    assert all(line.startswith("sapwood: ") for line in texts), (
        texts
    )  # what the command says while it loads
    assert not [line for line in server.lines if line.get("status", 0) >= 500]


# ---------------------------------------------------------------------------------------- the end
def streamed(server: Running, found: list[Any], tokens: int) -> None:
    messages: Any = [{"role": "user", "content": "b"}]
    with OpenAI(base_url=server.api, api_key=KEY, max_retries=0) as client:
        try:
            found += client.chat.completions.create(
                model=MODEL,
                messages=messages,
                stream=True,
                max_tokens=tokens,
                extra_body={"ignore_eos": True},
            )
        except Exception as error:
            found.append(error)


@pytest.mark.slow
def test_a_signal_drains_and_a_second_one_ends(folder: Path) -> None:
    model = folder / "model" if (folder / "model").is_dir() else make_model(folder)
    with running(folder, "--drain-seconds", "30", model=model) as one:
        found: list[Any] = []
        reader = threading.Thread(target=streamed, args=(one, found, 1000))
        reader.start()
        until(lambda: len(found) > 2)
        one.process.send_signal(signal.SIGTERM)
        until(lambda: any(line["event"] == "draining" for line in one.lines))
        health = raw(one, head("/health", CLOSE))
        assert (
            b" 503 " in health or health == b""
        )  # not ready, or already gone because all was done
        reader.join(60)
        assert found[-1].choices[0].finish_reason == "length"
        assert one.process.wait(30) == 0
        assert one.lines[-1]["event"] == "ended"
    with running(folder, "--drain-seconds", "600", model=model) as two:
        reader = threading.Thread(target=streamed, args=(two, [], 2000))
        reader.start()
        until(lambda: any(line.get("event") == "listening" for line in two.lines))
        time.sleep(0.5)
        two.process.send_signal(signal.SIGTERM)
        until(lambda: any(line["event"] == "draining" for line in two.lines))
        two.process.send_signal(signal.SIGTERM)
        try:
            two.process.wait(20)
        except subprocess.TimeoutExpired:
            pytest.fail("the second signal did not end it")
        reader.join(20)


def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
