"""A process that tries grammars before anybody relies on them: what takes too long or too much is killed with it."""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from sapwood.errors import SapwoodError
from sapwood.grammar.child import READY

PROGRAM = Path(__file__).with_name("child.py")
SECONDS = 3.0  # of one trial; what llguidance does within its own limits takes less than one on an idle core
START = 30.0  # seconds that the process may take to start


class Trial:
    """The process, started when first needed and again after it was killed; one trial at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> None:
        """Refuse a grammar that cannot be compiled, or not in time."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                process.stdin.flush()
                fault = self._answer(process, self.seconds)
            except OSError:  # the process is gone, most likely for want of memory
                fault = None
        if fault is None:
            raise SapwoodError(f"the grammar could not be compiled within {self.seconds:g} s; make it simpler")
        if fault:
            raise SapwoodError(f"the grammar cannot be used: {fault}")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            if self._answer(self._process, START) != READY:
                raise SapwoodError("grammars cannot be compiled here; install llguidance, or sapwood[serve]")
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]", seconds: float) -> str | None:
        """The next line that the process writes; None, and the process is ended, if it does not come in time."""
        assert process.stdout is not None
        end, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 65_536) if ready else b""
            if not piece:
                self.close()
                return None
            line += piece
        return str(json.loads(line))


TRIAL = Trial()
atexit.register(TRIAL.close)
