"""The engines behind the peers: real ones where they are installed, and our side of those that are not."""

import importlib.util
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sapwood.llm import LLM
from sapwood.peers import hf, hf_pld
from sapwood.peers.messages import AnswerMessage, LoadMessage, PromptMessage
from sapwood.peers.process import Peer, PeerError
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model

TEXT = byte_tokenizer.text()
PROMPT = TEXT.encode("abcabcabc")
SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.reply({{"build_info": "b1"}} if self.path == "/props" else {{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["temperature"] == 0 and asked["return_tokens"] and not asked["cache_prompt"]
        count = asked["n_predict"]
        times = {{"predicted_n": count, "predicted_ms": 20.0 * count, "prompt_ms": 50.0}}
        tokens = asked["prompt"][:count]
        self.reply({{"content": "a" * count, "tokens": tokens, "stop_type": "limit", "timings": times}})
    def reply(self, record):
        body = json.dumps(record).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

print("listening", sys.argv)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
VLLM = """
__version__ = "0.0"
class SamplingParams:
    def __init__(self, **options): self.options = options
class Out:
    def __init__(self, tokens): self.outputs = [self]; self.token_ids = tokens
class LLM:
    def __init__(self, folder, dtype, max_model_len, enable_prefix_caching):
        assert dtype == "float32" and not enable_prefix_caching
    def generate(self, prompts, sampling, use_tqdm):
        options = sampling.options
        assert options["temperature"] == 0.0 and options["ignore_eos"] is not bool(options["stop_token_ids"])
        return [Out(prompts[0]["prompt_token_ids"][: options["max_tokens"]])]
"""


def ask(name: str, order: LoadMessage, most: int = 4) -> tuple[Peer, AnswerMessage]:
    """One answer of a peer, which is closed afterwards."""
    peer = Peer(name, order)
    try:
        return peer, peer.ask(PromptMessage(PROMPT, most, [byte_tokenizer.EOS]))
    finally:
        peer.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    save_byte_model(tmp_path / "model")
    return tmp_path / "model"


# ----------------------------------------------------------------------------- installed ones
def answers_as_we_do(folder: Path, answer: AnswerMessage) -> None:
    """The tokens are those of our plain decoding."""
    with LLM(str(folder), "plain", dtype="float32", threads=1) as llm:
        ours = llm.generate(PROMPT, max_tokens=12).tokens
    assert answer.tokens == ours
    assert answer.count == len(ours)
    assert answer.timed < answer.count


@pytest.mark.slow
def test_transformers_answers_from_its_own_process(folder: Path) -> None:
    order = LoadMessage(str(folder), str(folder), threads=1, context=128)
    peer, answer = ask(f"hf-assisted:{folder}", order, 12)
    answers_as_we_do(folder, answer)
    assert peer.weights.startswith("float32, of the same folder")


@pytest.mark.parametrize(("kind", "argument"), [(hf, ""), (hf_pld, "3"), (hf_pld, "")])
def test_transformers_answers_as_we_do(kind: ModuleType, argument: str, folder: Path) -> None:
    # in this process: to import transformers again takes seconds
    peer = kind.open_peer(LoadMessage(str(folder), argument, threads=1, context=128))
    answers_as_we_do(folder, peer.decode(PromptMessage(PROMPT, 12, [byte_tokenizer.EOS])))
    assert peer.weights.startswith("float32, of the same folder")


@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="pip install 'sapwood[peers-llamacpp]'"
)
@pytest.mark.parametrize("name", ["llamacpp", "llamacpp-pld"])
def test_llamacpp_answers_as_we_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers import tiny_gguf

    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    with LLM(str(path), "plain", backend="llamacpp", threads=1) as llm:
        ours = llm.generate(PROMPT, max_tokens=12).tokens
    peer, answer = ask(name, LoadMessage(str(path), threads=1, context=512), 12)
    assert answer.tokens == ours
    assert answer.timed == answer.count - 1 == len(ours) - 1
    assert peer.weights.startswith("tiny.gguf as it is")


@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="pip install 'sapwood[peers-llamacpp]'"
)
def test_llamacpp_looks_up_in_long_prompts(tmp_path: Path) -> None:
    from tests.helpers import tiny_gguf

    peer = Peer(
        "llamacpp-pld",
        LoadMessage(str(tiny_gguf.write(tmp_path / "tiny.gguf")), threads=1, context=2048),
    )
    try:
        assert (
            peer.ask(PromptMessage(PROMPT * 120, 4)).count == 4
        )  # longer than its package reads at once
    finally:
        peer.close()


# ----------------------------------------------------------------------- our side of the others
def test_the_server_of_llamacpp_is_started_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    file = tmp_path / "some.gguf"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("LLAMA_SERVER", str(program))
    peer, answer = ask("llama-server", LoadMessage("smollm2", str(file)))
    assert (peer.weights, peer.version) == ("some.gguf as it is", "llama-server b1")
    assert (answer.tokens, answer.timed) == (PROMPT[:4], 3)
    assert (answer.seconds, answer.reading) == pytest.approx((0.08, 0.05))


def test_without_its_program_there_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", "/nowhere/llama-server")
    with pytest.raises(
        PeerError, match=r"not installed; put llama\.cpp's `llama-server` on the PATH"
    ):
        Peer("llama-server", LoadMessage("smollm2"))


def test_vllm_is_asked_for_one_token_and_for_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand").mkdir()
    (tmp_path / "stand" / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand"))
    peer, answer = ask("vllm", LoadMessage(str(folder), context=128))
    assert (answer.tokens, answer.count, answer.timed) == (PROMPT[:4], 4, 3)
    assert (peer.weights, peer.version) == ("float32, of the same folder", "vllm 0.0")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llamacpp", "reads GGUF files, not 'some/model'"),
        ("hf-assisted", "no assistant is known for some/model"),
    ],
)
def test_what_a_peer_cannot_run_is_said(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PeerError, match=reason):
        Peer(name, LoadMessage("some/model"))
