"""Processes of replicas, forked from one that has imported everything: a restart takes little."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any


class ReplicaProcess:
    """A forked process, which is no child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self._handle = -1
            self._ended.set_result(None)
            return
        asyncio.get_running_loop().add_reader(self._handle, self._close)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._handle = -1
        self._ended.set_result(None)

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return not self._ended.done()

    async def wait(self) -> None:
        """Wait for the end of the process."""
        await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it is still running."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)


class ForkServer:
    """The process that forks replicas; it is started again when it has ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        # of servers that have ended: their replicas live as long as these pipes
        self._pipes: list[asyncio.StreamWriter] = []

    async def fork(self, start: Mapping[str, Any]) -> ReplicaProcess | None:
        """Start a replica with these settings; None when that failed."""
        async with self._lock:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(json.dumps(start).encode() + b"\n")
                await process.stdin.drain()
                if line := await process.stdout.readline():
                    return ReplicaProcess(int(line))
            return None

    async def _running(self) -> asyncio.subprocess.Process:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sapwood",
                "replica",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # signals of a terminal reach the front alone
            )
            assert process.stdin is not None
            self._pipes.append(process.stdin)
        return process

    async def stop(self) -> None:
        """End the process; its replicas have ended before."""
        for pipe in self._pipes:
            pipe.close()
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
