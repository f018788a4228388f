"""llama.cpp's own server, started here, through its native route, which takes token ids."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from sapwood.peers import http
from sapwood.peers.llamacpp import gguf_file
from sapwood.peers.messages import (
    AnswerMessage,
    LoadedPeer,
    LoadMessage,
    PeerMissing,
    PeerRefused,
    PromptMessage,
)
from sapwood.peers.table import PEERS

START_S = 120.0


def open_peer(message: LoadMessage) -> LoadedPeer:
    """A server for the GGUF file on a free port."""
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not program or not os.access(program, os.X_OK):
        raise PeerMissing(PEERS["llama-server"].install)
    path = gguf_file(message)
    port = free_port()
    arguments = [
        "--model",
        path,
        "--port",
        port,
        "--host",
        "127.0.0.1",
        "--ctx-size",
        message.context,
        "--parallel",
        1,
    ]
    arguments += [
        "--threads",
        message.threads,
        "--n-gpu-layers",
        0 if message.device == "cpu" else 999,
    ]
    server = subprocess.Popen([program, *map(str, arguments)], stdout=2)  # it prints a lot
    url = f"http://127.0.0.1:{port}"
    wait(url, server)

    def decode(request: PromptMessage) -> AnswerMessage:
        return native(http.ask(f"{url}/completion", request_of(request)), request)

    def close() -> None:
        server.terminate()
        server.wait(10)

    version = str(http.ask(f"{url}/props").get("build_info", ""))
    return LoadedPeer(
        decode, f"{path.rsplit('/', 1)[-1]} as it is", f"llama-server {version}".strip(), close
    )


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the model is loaded."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise PeerRefused(f"llama-server ended with code {server.returncode}")
        try:
            http.ask(f"{url}/health")
        except PeerRefused:
            time.sleep(0.2)
        else:
            return
    server.kill()
    raise PeerRefused(f"llama-server was not ready after {START_S:g} s")


def request_of(request: PromptMessage) -> dict[str, object]:
    """A greedy request without prompt caching, with tokens in the response."""
    return {
        "prompt": request.prompt,
        "n_predict": request.most,
        "temperature": 0.0,
        "top_k": 1,
        "cache_prompt": False,
        "return_tokens": True,
        "ignore_eos": not request.ends,
    }


def native(response: Mapping[str, Any], request: PromptMessage) -> AnswerMessage:
    """The answer with the server's own timings, which exclude prefill."""
    timings: dict[str, float] = response["timings"]
    tokens: list[int] = response["tokens"]
    ended = response.get("stop_type") == "eos"
    if ended and request.ends and (not tokens or tokens[-1] not in request.ends):
        tokens = [*tokens, request.ends[0]]  # the server does not return the end-of-text token
    made = int(timings["predicted_n"])
    spent = timings["predicted_ms"] / 1000
    reading = timings["prompt_ms"] / 1000
    return AnswerMessage(
        len(tokens), max(made - 1, 0), spent, reading, tokens, str(response["content"])
    )
