"""The benchmark's side of a peer: its process, its messages, its timeouts and crashes."""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import IO, Any

from sapwood.peers.messages import AnswerMessage, LoadMessage, PromptMessage

# seconds that loading, and one answer, may take
START_S = 600.0
ANSWER_S = 300.0
TAIL = 300  # characters of a crashed peer's last line


class PeerError(Exception):
    """Reason why a peer has no row; `missing` if it is only not installed."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class Peer:
    """Another engine, in its own process."""

    def __init__(
        self,
        name: str,
        message: LoadMessage,
        *,
        start_s: float = START_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.name = name
        self._answer_s = answer_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "sapwood.peers", name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # keyboard interrupts are handled here
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._exchange(asdict(message), start_s)
        except BaseException:
            self.close()
            raise
        self.weights: str = ready["weights"]
        self.version: str = ready["version"]

    def ask(self, request: PromptMessage) -> AnswerMessage:
        """The answer to one prompt."""
        return AnswerMessage(**self._exchange(asdict(request), self._answer_s))

    def close(self) -> None:
        """End the process, by force if it does not react."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.close()  # ends the peer's loop
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
            line = b""  # it crashed before it could read
        except queue.Empty:
            self._process.kill()
            raise PeerError(f"gave no answer in {seconds:g} s and was ended") from None
        if not line:
            raise PeerError(
                f"its process ended with code {self._process.wait()}{self._last_line()}"
            )
        return self._content(json.loads(line))

    def _content(self, message: dict[str, Any]) -> dict[str, Any]:
        [(kind, content)] = message.items()
        if kind == "missing":
            raise PeerError(f"not installed; {content}", missing=True)
        if kind in ("refused", "failed"):
            raise PeerError(content)
        found: dict[str, Any] = content
        return found

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[-TAIL:]}" if lines else ""
