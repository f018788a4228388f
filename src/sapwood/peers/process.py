"""The benchmark's side of a peer: starts its process, asks, waits no longer than it may, and survives its death."""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import IO, Any

from sapwood.peers.words import Answer, Ask, Order

START_S, ANSWER_S = 600.0, 300.0  # seconds that loading, and one answer, may take
TAIL = 300  # letters of what a dead peer printed last


class PeerError(Exception):
    """Why a peer has no row; `missing` says that it is only not installed."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class Peer:
    """Another engine, in its own process."""

    def __init__(self, name: str, order: Order, *, start_s: float = START_S, answer_s: float = ANSWER_S) -> None:
        self.name, self._answer_s = name, answer_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "sapwood.peers", name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt from the keyboard is ours to handle
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._exchange(asdict(order), start_s)
        except BaseException:
            self.close()
            raise
        self.weights: str = ready["weights"]
        self.version: str = ready["version"]

    def ask(self, ask: Ask) -> Answer:
        """The answer to one prompt."""
        return Answer(**self._exchange(asdict(ask), self._answer_s))

    def close(self) -> None:
        """End the process, by force where it does not listen."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.close()  # the end of its input is the end of its work
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(5)
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _exchange(self, record: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(record).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except OSError:
            line = b""  # it died before it could read
        except queue.Empty:
            self._process.kill()
            raise PeerError(f"gave no answer in {seconds:g} s and was ended") from None
        if not line:
            raise PeerError(f"its process ended with code {self._process.wait()}{self._last_words()}")
        return self._understood(json.loads(line))

    def _understood(self, said: dict[str, Any]) -> dict[str, Any]:
        [(kind, content)] = said.items()
        if kind == "missing":
            raise PeerError(f"not installed; {content}", missing=True)
        if kind in ("refused", "failed"):
            raise PeerError(content)
        found: dict[str, Any] = content
        return found

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[-TAIL:]}" if lines else ""
