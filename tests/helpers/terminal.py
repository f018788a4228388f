"""A program run in a pseudo-terminal, typed at and read as a person would."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>])")


class Terminal:
    """A process with a terminal of 80 columns and 24 lines; use it as a context."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd,
            env={**os.environ, "TERM": "xterm-256color", **env}, start_new_session=True,
            # its controlling terminal, so that Ctrl-C reaches it
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.seen = ""  # everything that was shown so far
        self.read_to = 0  # how much of it was waited for

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def press(self, keys: str) -> None:
        """Send keys as a terminal does: \\r is Enter."""
        os.write(self.master, keys.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """Read until this text is shown after what was waited for before; what came, as text."""
        end = time.monotonic() + seconds
        while text not in self.plain[self.read_to :]:
            self._read(end, f"{text!r} was not shown")
        begin, self.read_to = self.read_to, self.plain.index(text, self.read_to) + len(text)
        return self.plain[begin : self.read_to]

    def wait_exit(self, seconds: float = 60.0) -> int:
        """The exit code of the process."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            self._read(end, "the process did not end")
        return self.process.returncode

    @property
    def plain(self) -> str:
        """Everything shown so far, without colours and cursor movements."""
        return ESCAPES.sub("", self.seen).replace("\r", "")

    def _read(self, end: float, failure: str) -> None:
        if time.monotonic() > end:
            raise AssertionError(f"{failure}; shown: {self.plain[-2000:]!r}")
        if select.select([self.master], [], [], 0.2)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # Linux says so when the process has closed its side
                time.sleep(0.05)
                return
            self.seen += data.decode("utf-8", "replace")
            if "\x1b[6n" in data.decode("utf-8", "replace"):
                self.press("\x1b[24;1R")  # the cursor's place, which editors ask for
