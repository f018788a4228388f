"""A process that test-compiles grammars, killed when one takes too long or too much memory."""

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
from sapwood.structured_output.compile_worker import READY

PROGRAM = Path(__file__).with_name("compile_worker.py")
# for one grammar; within its own limits, llguidance takes less than one on an idle core
SECONDS = 3.0
START = 30.0  # seconds that the process may take to start


class CompileProcess:
    """The process: started when first needed and after it was killed; one grammar at a time."""

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
                fault = self._read_line(process, self.seconds)
            except OSError:  # the process is gone, most likely out of memory
                fault = None
        if fault is None:
            raise SapwoodError(
                f"the grammar could not be compiled within {self.seconds:g} s; make it simpler"
            )
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
            if self._read_line(self._process, START) != READY:
                raise SapwoodError(
                    "grammars cannot be compiled here; install llguidance, or sapwood[serve]"
                )
        return self._process

    def _read_line(self, process: "subprocess.Popen[bytes]", seconds: float) -> str | None:
        """The next line of the process; if it does not come in time, None, and the process ends."""
        assert process.stdout is not None
        end = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 65_536) if ready else b""
            if not piece:
                self.close()
                return None
            line += piece
        return str(json.loads(line))


COMPILER = CompileProcess()
atexit.register(COMPILER.close)
