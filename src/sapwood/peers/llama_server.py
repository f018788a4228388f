"""llama.cpp's own server, started here and asked through its native route, which takes and gives tokens."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from sapwood.peers import http
from sapwood.peers.llamacpp import gguf_file
from sapwood.peers.table import PEERS
from sapwood.peers.words import Answer, Ask, Missing, Opened, Order, Refused

START_S = 120.0


def open_peer(order: Order) -> Opened:
    """A server for the GGUF file on a free port."""
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not program or not os.access(program, os.X_OK):
        raise Missing(PEERS["llama-server"].install)
    path, port = gguf_file(order), free_port()
    words = ["--model", path, "--port", port, "--host", "127.0.0.1", "--ctx-size", order.context, "--parallel", 1]
    words += ["--threads", order.threads, "--n-gpu-layers", 0 if order.device == "cpu" else 999]
    server = subprocess.Popen([program, *map(str, words)], stdout=2)  # it prints a lot
    url = f"http://127.0.0.1:{port}"
    wait(url, server)

    def decode(ask: Ask) -> Answer:
        return native(http.ask(f"{url}/completion", request_of(ask)), ask)

    def close() -> None:
        server.terminate()
        server.wait(10)

    version = str(http.ask(f"{url}/props").get("build_info", ""))
    return Opened(decode, f"{path.rsplit('/', 1)[-1]} as it is", f"llama-server {version}".strip(), close)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Until the model is loaded."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise Refused(f"llama-server ended with code {server.returncode}")
        try:
            http.ask(f"{url}/health")
        except Refused:
            time.sleep(0.2)
        else:
            return
    server.kill()
    raise Refused(f"llama-server was not ready after {START_S:g} s")


def request_of(ask: Ask) -> dict[str, object]:
    """Greedy, nothing remembered from request to request, tokens in the answer."""
    return {
        "prompt": ask.prompt,
        "n_predict": ask.most,
        "temperature": 0.0,
        "top_k": 1,
        "cache_prompt": False,
        "return_tokens": True,
        "ignore_eos": not ask.ends,
    }


def native(said: Mapping[str, Any], ask: Ask) -> Answer:
    """The answer with the server's own clock, which starts after the prompt."""
    timings: dict[str, float] = said["timings"]
    tokens: list[int] = said["tokens"]
    if said.get("stop_type") == "eos" and ask.ends and (not tokens or tokens[-1] not in ask.ends):
        tokens = [*tokens, ask.ends[0]]  # the server keeps the end of the text to itself
    made = int(timings["predicted_n"])
    spent, reading = timings["predicted_ms"] / 1000, timings["prompt_ms"] / 1000
    return Answer(len(tokens), max(made - 1, 0), spent, reading, tokens, str(said["content"]))
