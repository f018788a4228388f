"""Real replicas in processes of their own: killed, hung, restarted and drained under load."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fleet import log_lines, questions
from benchmarks.load_clients import Seen, Wish, crowd, get, send
from benchmarks.load_server import Served, make_tiny

from sapwood.cli.main import main

# in one process, so that one fleet is started for all tests
pytestmark = pytest.mark.slow
WANTED = [Wish("whole", one) for one in questions(10, 1)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A front with two replicas on a tiny model."""
    folder = tmp_path_factory.mktemp("fleet")
    model = make_tiny(folder / "tiny")
    server = Served(model, folder, ["--replicas", "2", "--threads", "1"])
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()


@pytest.fixture(scope="module")
def right(fleet: Served) -> dict[str, str]:
    """The texts of an unbroken run."""
    found = asyncio.run(crowd(fleet.port, WANTED, 1))
    assert all(seen.complete for seen in found)
    return {seen.wish.key: seen.text for seen in found}


def pids(server: Served) -> dict[int, int]:
    """The processes of the replicas."""
    return {line["replica"]: line["pid"] for line in log_lines(server, "replica ready")}


def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


async def metrics(server: Served) -> str:
    """The page of metrics."""
    return (await get(server.port, "/metrics"))[1]


def value(page: str, name: str) -> float:
    """A sample of a page of metrics, by its name with labels."""
    [line] = [line for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def loaded(server: Served, replica: int, killed: Sequence[int]) -> int:
    """The process of a replica that has requests, once it is none of those that were killed."""
    async with asyncio.timeout(60.0):
        while True:
            page = await metrics(server)
            pid = pids(server)[replica]
            under_way = value(page, f'sapwood_front_requests{{replica="{replica}"}}')
            if pid not in killed and under_way:
                return pid
            await asyncio.sleep(0.02)


def check(found: list[Seen], right: dict[str, str]) -> None:
    """Every stream is whole, with the right text and one id."""
    for seen in found:
        assert (seen.status, seen.complete, seen.trouble) == (200, True, "")
        assert seen.text == right[seen.wish.key]
        assert len(seen.heads) == 1


def test_killed_replicas_lose_no_stream(fleet: Served, right: dict[str, str]) -> None:
    until(lambda: fleet.number("sapwood_replica_ready") == 2)
    before = fleet.number("sapwood_replica_restarts_total")
    killed: list[int] = []

    async def kill() -> None:
        """Kill three replicas that have requests, and more while no stream was resumed."""
        for replica in itertools.cycle((0, 1)):
            pid = await loaded(fleet, replica, killed)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            if len(killed) >= 3 and value(await metrics(fleet), "sapwood_front_resumed_total"):
                return

    async def play() -> list[Seen]:
        killing = asyncio.ensure_future(kill())
        found: list[Seen] = []
        while not killing.done():
            found += await crowd(fleet.port, WANTED, 10)
        await killing
        return found

    check(asyncio.run(play()), right)
    until(lambda: fleet.number("sapwood_replica_restarts_total") >= before + len(killed))
    until(lambda: fleet.number("sapwood_replica_ready") == 2)
    assert not set(killed) & set(pids(fleet).values())


def test_replicas_are_restarted_one_after_another(fleet: Served, right: dict[str, str]) -> None:
    until(lambda: fleet.number("sapwood_replica_ready") == 2)
    before = pids(fleet)
    wanted = WANTED * 4

    async def play() -> list[Seen]:
        fleet.process.send_signal(signal.SIGHUP)
        return await crowd(fleet.port, wanted, 4)

    check(asyncio.run(play()), right)
    until(lambda: not set(before.values()) & set(pids(fleet).values()))
    until(lambda: fleet.number("sapwood_replica_ready") == 2)


def test_running_streams_are_completed_at_the_end(fleet: Served, right: dict[str, str]) -> None:
    async def play() -> list[Seen]:
        asked = [asyncio.ensure_future(send(fleet.port, wish)) for wish in WANTED]
        while "sapwood_front_requests" in (page := (await get(fleet.port, "/metrics"))[1]):
            running = [line for line in page.splitlines() if "sapwood_front_requests{" in line]
            if sum(float(line.split()[1]) for line in running):
                break
        fleet.process.send_signal(signal.SIGTERM)
        return [await one for one in asked]

    found = [seen for seen in asyncio.run(play()) if seen.status == 200]
    check(found, right)
    assert found
    processes = pids(fleet).values()
    assert fleet.wait() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


def test_replicas_end_with_a_killed_front(tmp_path: Path) -> None:
    server = Served(make_tiny(tmp_path / "tiny"), tmp_path, ["--replicas", "2", "--threads", "1"])
    until(lambda: len(pids(server)) == 2)
    processes = pids(server).values()
    server.end(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 20)


def test_a_model_that_is_missing_ends_the_front(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--replicas", "2", "--model", "/nowhere/at/all", "--port", "0"]) == 2
    said = capfd.readouterr().err
    assert "the first replica ended before it was ready" in said
    assert "/nowhere/at/all" in said


def test_replicas_need_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--replicas", "0"]) == 2
    assert "replicas=0 must be from 1 to 64" in capsys.readouterr().err
    assert os.environ.get("SAPWOOD_REPLICAS") is None
