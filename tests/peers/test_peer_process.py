"""Other engines beside ours: the pipe to them, what goes wrong with them, and what their rows say."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.measure import BenchRun
from sapwood.bench.peer_rows import agreement, shared
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.peers import process
from sapwood.peers.llama_server import native, request_of
from sapwood.peers.llamacpp import timed
from sapwood.peers.messages import LoadMessage, PromptMessage
from sapwood.peers.openai import body_of
from sapwood.peers.process import Peer, PeerError
from sapwood.peers.table import PEERS, read_peers
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()
FAKE = """
import sys, time
from sapwood.peers.messages import AnswerMessage, LoadedPeer, PeerMissing, PeerRefused

def open_peer(order):
    print("a library says hello")
    if order.argument == "missing":
        raise PeerMissing("pip install it")
    if order.argument == "refuses":
        raise PeerRefused("it has no such file")
    if order.argument == "breaks":
        raise RuntimeError("out of luck")
    def decode(ask):
        print("noise", flush=True)
        if order.argument == "dies" and ask.most > 2:
            sys.stderr.write("a last word\\\\n")
            sys.exit(3)
        if order.argument == "sleeps":
            time.sleep(60)
        return AnswerMessage(3, 2, 0.5, 0.25, [7, 8, 9])
    return LoadedPeer(decode, "its own", "fake 1.0")
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hf` is a small file of ours, in the child's process as well."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        f"made = types.ModuleType('sapwood.peers.hf')\nexec('''{FAKE}''', made.__dict__)\n"
        "sys.modules['sapwood.peers.hf'] = made\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def order(argument: str = "") -> LoadMessage:
    return LoadMessage("toy", argument)


# ---------------------------------------------------------------------------------------- names
def test_peers_are_read_by_name() -> None:
    found = read_peers("hf, hf-pld,hf,llamacpp:a.gguf,openai:http://localhost:1/v1")
    assert found == ["hf", "hf-pld", "llamacpp:a.gguf", "openai:http://localhost:1/v1"]
    assert read_peers("") == []
    for text, reason in (
        ("sglang", "peer 'sglang' is not known; use hf, hf-pld"),
        ("openai", "needs an address"),
        ("hf:x", "takes nothing after a colon"),
    ):
        with pytest.raises(SapwoodError, match=reason):
            read_peers(text)


def test_every_peer_has_a_file_and_a_way_to_install_it() -> None:
    folder = Path(process.__file__).parent
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for name, entry in PEERS.items():
        assert (folder / f"{entry.module}.py").is_file(), name
        assert entry.install
        if "sapwood[" in entry.install:
            assert f"\n{entry.install.partition('[')[2].partition(']')[0]} = [" in project, name


# ----------------------------------------------------------------------------------- the process
@pytest.mark.usefixtures("fake")
def test_a_peer_answers_whatever_its_library_prints() -> None:
    held = bytearray(300 << 20)
    held[::4096] = b"x" * len(held[::4096])
    peer = Peer("hf", order())
    del held
    try:
        assert (peer.weights, peer.version) == ("its own", "fake 1.0")
        for _ in range(2):
            answer = peer.ask(PromptMessage([1, 2], 3))
            assert (answer.tokens, answer.timed, answer.seconds, answer.reading) == (
                [7, 8, 9],
                2,
                0.5,
                0.25,
            )
            assert answer.memory is not None
            assert (
                1 << 20 < answer.memory < 200 << 20
            )  # its own, not that of the process that started it
    finally:
        peer.close()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("argument", "reason", "missing"),
    [
        ("missing", "not installed; pip install it", True),
        ("refuses", "it has no such file", False),
        ("breaks", "RuntimeError: out of luck", False),
    ],
)
def test_a_peer_that_does_not_start_says_why(argument: str, reason: str, missing: bool) -> None:
    with pytest.raises(PeerError, match=reason) as caught:
        Peer("hf", order(argument))
    assert caught.value.missing is missing


@pytest.mark.usefixtures("fake")
def test_a_peer_that_dies_or_sleeps_is_given_up() -> None:
    dies = Peer("hf", order("dies"))
    assert dies.ask(PromptMessage([1], 2)).count == 3
    with pytest.raises(PeerError, match="its process ended with code 3: a last word"):
        dies.ask(PromptMessage([1], 3))
    dies.close()
    sleeps = Peer("hf", order("sleeps"), answer_s=0.5)
    with pytest.raises(PeerError, match=r"gave no answer in 0\.5 s and was ended"):
        sleeps.ask(PromptMessage([1], 3))
    sleeps.close()


def test_what_is_not_installed_is_a_skipped_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = bench(tmp_path, monkeypatch, "vllm" if not installed("vllm") else "llama-server")[-1]
    assert row["peer"] is True
    assert row["skipped"].startswith("not installed; ")
    assert "skipped: not installed" in " ".join(capsys.readouterr().out.split())


def installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


# -------------------------------------------------------------------------------------- the rows
def test_agreement_is_the_share_before_the_texts_part() -> None:
    assert shared([1, 2, 3, 4], [1, 2, 9]) == 0.5
    assert shared("", "") == 1.0
    plain = BenchRun(tokens=[*TEXT.encode("abcd", whole=False), byte_tokenizer.EOS])
    assert agreement(BenchRun(tokens=TEXT.encode("abcd", whole=False)), plain, TEXT) == 1.0
    assert agreement(BenchRun(said=4, text=" abcx"), plain, TEXT) == 0.75


def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peers: str, *more: str
) -> list[dict[str, Any]]:
    """Rows over all prompts of a small benchmark with these peers."""
    target: Any = ToyBackend(vocab=byte_tokenizer.SIZE, context=400)
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        options.ModelChoice, "open", lambda self, progress: LLM(target, "plain", text=TEXT)
    )
    path = tmp_path / "peers.json"
    given = [
        "--suite",
        "chat",
        "--limit",
        "2",
        "--max-tokens",
        "6",
        "--ignore-eos",
        "--json",
        str(path),
    ]
    assert main(["bench", "--recipes", "pld", "--peers", peers, *given, *more]) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return [row for row in rows if row["category"] == "all"]


# ------------------------------------------------------------------------------- a fake server
class Handler(BaseHTTPRequestHandler):
    """Speaks OpenAI's protocol: repeats one word for each token asked for."""

    takes_tokens = True
    seen: list[dict[str, Any]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "parrot", "owned_by": "tests"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(asked)
        if isinstance(asked["prompt"], list) and not self.takes_tokens:
            self.reply({"error": "text only"}, 400)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            self.event({"choices": [{"text": "a"}]})
        self.event({"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, record: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(record)}\n\n".encode())
        self.wfile.flush()

    def reply(self, record: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(record).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(params=[True, False], ids=["tokens", "text"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, type[Handler]]]:
    """Its address and its memory."""
    kind = type("Kind", (Handler,), {"takes_tokens": request.param, "seen": []})
    made = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}", kind
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_by_its_address_has_a_row(
    server: tuple[str, type[Handler]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = server
    plain, pld, row = bench(tmp_path, monkeypatch, f"openai:{url}")
    assert (plain["recipe"], pld["recipe"], row["recipe"]) == ("plain", "pld", f"openai:{url}")
    assert (row["peer"], row["skipped"], row["prompts"], row["tokens"]) == (True, None, 2, 12)
    form = "tokens" if kind.takes_tokens else "text"
    assert row["weights"] == f"the server's own, parrot; prompts as {form}; tests"
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert row["tokens_per_second"] > 0
    assert (row["identical"], row["guarantee"], row["tokens_per_pass"]) == (None, "", None)
    assert 0 <= row["agreement"] <= 2
    assert row["agreement_share"] < 1
    counted = [asked for asked in kind.seen if asked["max_tokens"] == 6]
    assert len(counted) == 3  # one to warm up
    assert all(asked["temperature"] == 0 and asked["stream"] for asked in counted)
    if not kind.takes_tokens:
        assert "<user>" in counted[-1]["prompt"]


def test_peers_stay_out_of_sampled_and_batched_settings(
    server: tuple[str, type[Handler]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = bench(
        tmp_path, monkeypatch, f"openai:{server[0]}", "--temperature", "0,1", "--batch", "1,2"
    )
    reasons = [row["skipped"] for row in rows if row["peer"]]
    assert reasons[0] is None
    assert reasons[1] == "peers are asked one prompt at a time; no row at batch 2"
    assert reasons[2] == reasons[3] == "peers decode greedily here; no row at temperature 1"


def test_a_server_that_is_not_there_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pld, row = bench(tmp_path, monkeypatch, "openai:http://127.0.0.1:9")
    assert pld["identical"] == 2
    assert "cannot be reached" in row["skipped"]
    assert "start the server first" in row["skipped"]


# --------------------------------------------------------------------------------- small pieces
def test_requests_are_greedy() -> None:
    ask = PromptMessage([1, 2], 5, [0], "hello")
    assert body_of(ask, "m", "tokens")["prompt"] == [1, 2]
    assert body_of(ask, "m", "text")["prompt"] == "hello"
    assert request_of(ask)["ignore_eos"] is False
    assert request_of(PromptMessage([1], 5))["ignore_eos"] is True


def test_the_server_of_llamacpp_keeps_its_own_time() -> None:
    said = {
        "content": "ab",
        "tokens": [5, 6],
        "stop_type": "eos",
        "timings": {"predicted_n": 3, "predicted_ms": 40.0, "prompt_ms": 100.0},
    }
    answer = native(said, PromptMessage([1], 9, [2]))
    assert (answer.tokens, answer.count, answer.timed) == ([5, 6, 2], 3, 2)
    assert (answer.seconds, answer.reading) == (0.04, 0.1)


def test_tokens_of_a_generator_end_with_the_text() -> None:
    assert timed(iter([4, 5, 2, 9]), PromptMessage([1], 9, [2])).tokens == [4, 5, 2]
    assert timed(iter([4, 5, 2, 9]), PromptMessage([1], 2, [2])).tokens == [4, 5]
    assert timed(iter([4, 5, 2, 9]), PromptMessage([1], 9)).tokens == [4, 5, 2, 9]
