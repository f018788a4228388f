"""Starts the replicas, checks their health and starts again those that end."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.fleet.fork_server import ForkServer, ReplicaProcess
from sapwood.fleet.replica import Replica, ReplicaLost
from sapwood.fleet.router import Router
from sapwood.server.resume import SECRET
from sapwood.server.server import log_event

POLL_S = 0.05  # between two looks at a replica that starts
HEALTH_S = 1.0  # between two health checks
PATIENCE_S = 5.0  # that a health check may take
FAILURES = 4  # health checks in a row after which a replica is killed
LONGEST_PAUSE_S = 10.0  # before a replica that cannot start is tried again
STOP_S = 10.0  # that replicas have to end
UNLIMITED = {  # the front has applied these limits
    "body": 1 << 40,
    "per_key": 1 << 40,
    "idle_seconds": 86400.0,
    "write_seconds": 86400.0,
}
# settings of the front alone
OF_THE_FRONT = ("key", "keys", "host", "port", "replicas", "insecure", "socket", "front")


class Supervisor:
    """The processes of all replicas."""

    def __init__(
        self, count: int, given: Mapping[str, Any], config: str | None, drain_seconds: float
    ) -> None:
        self.secret = secrets.token_urlsafe(32)
        self.replicas: Sequence[Replica] = [Replica(number) for number in range(count)]
        self.router = Router(self.replicas)
        self.given = given
        self.config = config
        self.drain_seconds = drain_seconds
        self.restarts = 0
        self.stopping = False
        self._folder = Path(tempfile.mkdtemp(prefix="sapwood-"))
        self._forks = ForkServer()
        self._processes: dict[int, ReplicaProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header that opens a replica."""
        return [(SECRET, self.secret)]

    # ------------------------------------------------------------------------------- life
    async def start(self) -> None:
        """Start the first replica, which measures and compiles; then all others."""
        first, *others = self.replicas
        await self._spawn(first)
        if not await self._until_ready(first):
            raise SapwoodError(
                "the first replica ended before it was ready; its own message is above"
            )
        self._keepers = [asyncio.ensure_future(self._keep(first, begun=True))]
        self._keepers += [asyncio.ensure_future(self._keep(one)) for one in others]

    async def stop(self) -> None:
        """End all replicas and remove their sockets."""
        self.stopping = True
        tasks = [*self._keepers, *([self._rolling] if self._rolling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            running = [one for one in self._processes.values() if one.running]
            for process in running:
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*(process.wait() for process in running))
        await self._forks.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def roll(self) -> None:
        """Begin to restart all replicas, one after another, unless that is under way."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.ensure_future(self._roll())

    async def _roll(self) -> None:
        for replica in self.replicas:
            process = self._processes[replica.number]
            replica.ready = False  # its streams end there or go on elsewhere
            process.send_signal(signal.SIGTERM)
            await process.wait()
            while not replica.ready:
                await asyncio.sleep(POLL_S)

    async def _keep(self, replica: Replica, *, begun: bool = False) -> None:
        """Run a replica until the fleet stops."""
        failures = 0
        while True:
            if not begun:
                await self._spawn(replica)
                begun = await self._until_ready(replica)
            failures = 0 if begun else failures + 1
            if begun:
                await self._watch(replica, self._processes[replica.number])
            replica.lost()
            self.restarts += 1
            begun = False
            log_event("replica ended", replica=replica.number)
            if failures:
                await asyncio.sleep(min(2.0**failures / 4, LONGEST_PAUSE_S))

    # ------------------------------------------------------------------------------- processes
    async def _spawn(self, replica: Replica) -> None:
        """Start a process; its settings and the secret go through a pipe."""
        replica.starts += 1
        replica.socket = str(self._folder / f"{replica.number}-{replica.starts}.sock")
        cores = share_of_cores(replica.number, len(self.replicas))
        given = {name: value for name, value in self.given.items() if name not in OF_THE_FRONT}
        given |= {"host": "127.0.0.1", "replicas": 1, "socket": replica.socket}
        given |= {"front": self.secret, "drain_seconds": self.drain_seconds}
        given["limits"] = dict(given.get("limits") or {}) | UNLIMITED
        if given.get("threads") is None:
            given["threads"] = max(len(cores), 1)
        if len(cores) < 2:  # beside the model's thread, one serves HTTP
            cores = sorted(os.sched_getaffinity(0))
        start = {
            "number": replica.number,
            "given": given,
            "config": self.config,
            "cores": cores,
            "environment": environment_of(replica.number, str(given.get("device") or "")),
        }
        process = await self._forks.fork(start)
        if process is not None:
            self._processes[replica.number] = process

    async def _until_ready(self, replica: Replica) -> bool:
        """Wait until a replica accepts requests; False when it ended before."""
        process = self._processes.get(replica.number)
        began = time.monotonic()
        while process is not None and process.running:
            if await self._healthy(replica, "/health"):
                seconds = round(time.monotonic() - began, 2)
                log_event("replica ready", replica=replica.number, pid=process.pid, seconds=seconds)
                self._set_ready(replica)
                return True
            await asyncio.sleep(POLL_S)
        return False

    def _set_ready(self, replica: Replica) -> None:
        replica.ready = True
        self.router.notify()

    async def _watch(self, replica: Replica, process: ReplicaProcess) -> None:
        """Check the health of a running replica; kill it when it no longer responds."""
        ended = asyncio.ensure_future(process.wait())
        failures = 0
        try:
            while True:
                replica.doubt.clear()
                doubt = asyncio.ensure_future(replica.doubt.wait())
                await asyncio.wait(
                    {ended, doubt}, timeout=HEALTH_S, return_when=asyncio.FIRST_COMPLETED
                )
                doubt.cancel()
                if ended.done():
                    return
                if await self._healthy(replica, "/health/live"):
                    failures = 0
                    if not replica.ready and await self._healthy(replica, "/health"):
                        self._set_ready(replica)
                elif not ended.done():
                    failures += 1
                    replica.ready = False
                    if failures >= FAILURES:
                        log_event("replica killed", replica=replica.number, reason="no response")
                        process.send_signal(signal.SIGKILL)
                    else:
                        await asyncio.sleep(POLL_S)
        finally:
            ended.cancel()

    async def _healthy(self, replica: Replica, path: str) -> bool:
        try:
            status, _ = await replica.fetch(path, self.headers, PATIENCE_S)
        except ReplicaLost:
            return False
        return status == 200


def share_of_cores(number: int, count: int) -> list[int]:
    """The cores of one of `count` replicas."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[number * len(cores) // count : (number + 1) * len(cores) // count]


def environment_of(number: int, device: str) -> dict[str, str]:
    """Variables of the environment of a replica: one GPU each where there are some."""
    gpus = () if device.startswith("cpu") else visible_gpus(os.environ)
    return {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}


def visible_gpus(environment: Mapping[str, str]) -> Sequence[str]:
    """The names of NVIDIA GPUs that this process may use."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(folder.iterdir())))] if folder.exists() else []
