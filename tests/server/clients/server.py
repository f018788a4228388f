"""A real server in a process of its own, on a tiny model, for clients to talk to."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "key-of-the-tests"
MODEL = "tiny"
START = 120.0  # seconds, on a machine that does much else


@dataclass
class Running:
    """The process and where it listens."""

    process: "subprocess.Popen[bytes]"
    port: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)  # what it logged
    listening: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Of the server itself."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        """Of the API, as clients want it."""
        return f"{self.url}/v1"

    def read(self) -> None:
        """Keep what the process says on standard error."""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            try:
                line = json.loads(raw)
            except ValueError:
                line = {"event": "text", "text": raw.decode("utf-8", "replace")}
            self.lines.append(line)
            if line["event"] == "listening":
                self.port = line["port"]
                self.listening.set()
        self.listening.set()


def make_model(folder: Path, context: int = 2048) -> Path:
    """A two-layer model with a tokenizer of bytes and a chat template."""
    from tests.helpers.byte_model import save_byte_model

    path = folder / "model"
    save_byte_model(path, max_position_embeddings=context)
    return path


@contextmanager
def small(folder: Path) -> Iterator[Running]:
    """The same on a model of so short a context that every generated request ends soon."""
    limits = ("n=2", "prompts=4", "new_tokens=1024", "request_seconds=20")
    options = [word for limit in limits for word in ("--limit", limit)]
    with running(folder, *options, model=make_model(folder, context=128)) as one:
        yield one


@contextmanager
def running(
    folder: Path, *options: str, model: Path | None = None, key: str = KEY, name: str = MODEL
) -> Iterator[Running]:
    """Start the server, wait until it listens, and end it."""
    path = model or make_model(folder)
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "SAPWOOD_CACHE": str(folder / "cache"),
        "SAPWOOD_KEY": key,
        "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root))),
    }
    command = [
        sys.executable,
        "-m",
        "tests.helpers.unmeasured",
        "serve",
        "--model",
        str(path),
        *(["--name", name] if name else []),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--threads", "1", *options], stderr=subprocess.PIPE, env=environment
    )
    one = Running(process)
    reader = threading.Thread(target=one.read, daemon=True)
    reader.start()
    try:
        assert one.listening.wait(START), "the server did not start in time"
        assert one.port, one.lines
        yield one
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
