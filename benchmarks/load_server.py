"""The server of a load test: a process of its own, on a tiny model that is made on the spot."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.load_clients import get

READY_S = 180.0  # longest start of a server
END_S = 60.0  # longest shutdown


class Served:
    """A server in a process of its own."""

    def __init__(self, model: str, folder: Path, options: list[str]) -> None:
        environment = {**os.environ, "SAPWOOD_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "sapwood",
            "serve",
            "--model",
            model,
            "--name",
            "tiny",
            "--port",
            "0",
            *options,
        ]
        self.log = (folder / f"log-{time.monotonic_ns()}.txt").open("w+")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, env=environment)
        self.port = self._wait()

    def _wait(self) -> int:
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(
                r'"event":"listening".*?"port":(\d+)', Path(self.log.name).read_text()
            )
            if found:
                return int(found.group(1))
            time.sleep(0.02)
        raise SystemExit(f"the server did not start:\n{Path(self.log.name).read_text()[-2000:]}")

    def memory(self) -> float:
        """Resident megabytes."""
        [line] = [
            line
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            if "VmRSS" in line
        ]
        return int(line.split()[1]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time of the process, without that of its children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def number(self, name: str) -> float:
        """Sum of a metric's samples; the name may carry labels."""
        _, page = asyncio.run(get(self.port, "/metrics"))
        wanted = re.escape(name) + (r"(?:\{[^}]*\})?" if "{" not in name else "")
        return sum(float(value) for value in re.findall(rf"^{wanted} (\S+)$", page, re.MULTILINE))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit status, once the process has ended."""
        code = self.process.wait(END_S)
        self.log.close()
        return code


def make_tiny(folder: Path) -> str:
    """A model folder with random weights and a tokenizer of bytes."""
    from tests.helpers import byte_tokenizer, tiny_models

    tiny_models.make(
        "llama",
        vocab_size=byte_tokenizer.SIZE,
        max_position_embeddings=512,
        eos_token_id=byte_tokenizer.EOS,
    ).save_pretrained(folder)
    byte_tokenizer.save(folder)
    return str(folder)
