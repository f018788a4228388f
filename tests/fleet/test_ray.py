"""Ray Serve: options, and where Ray is installed a fleet that grows, shrinks and is updated."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import pytest
from benchmarks.fleet import questions
from benchmarks.load_clients import Seen, Wish, crowd
from benchmarks.load_server import make_tiny

from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from sapwood.fleet.ray_serve import RayOptions, application, begin

RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not RAY, reason="Ray is missing: pip install 'ray[serve]'")


@pytest.mark.skipif(RAY, reason="Ray is installed")
def test_a_missing_ray_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "ray"]) == 2
    assert "needs the ray extra: pip install 'sapwood[ray]'" in capsys.readouterr().err


def test_options_are_checked() -> None:
    for least, most, ongoing in ((0, 1, 1), (3, 2, 1), (1, 1, 0)):
        with pytest.raises(SapwoodError, match="must be 1 or more"):
            RayOptions(min_replicas=least, max_replicas=most, ongoing=ongoing)
    assert RayOptions(cpus=3).settings["threads"] == 3
    assert RayOptions(cpus=0.1).settings["threads"] == 1


@pytest.mark.parametrize(
    ("cluster", "place"),
    [(None, "this machine"), ("10.0.0.9:6379", "the cluster at 10.0.0.9:6379")],
)
def test_a_ray_that_does_not_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, cluster: str | None, place: str
) -> None:
    def init(**_: object) -> Never:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(SapwoodError) as found:
        begin(cluster)
    assert str(found.value) == (
        f"Ray did not start on {place}: The current node timed out during startup."
    )


@needs_ray
def test_unknown_arguments_are_named() -> None:
    with pytest.raises(SapwoodError, match="unknown argument 'wish'"):
        application({"wish": 1})


def command(model: str, port: int, *options: str) -> list[str]:
    """The command that deploys on Ray."""
    sizes = ["--cpus", "0.1", "--max-replicas", "3", "--up-seconds", "1", "--down-seconds", "2"]
    place = ["--model", model, "--name", "tiny", "--port", str(port)]
    return [sys.executable, "-m", "sapwood", "deploy", "ray", *place, *sizes, *options]


@contextmanager
def on_ray(folder: Path, model: str) -> Iterator[int]:
    """A server on Ray; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    log = folder / "log"
    with log.open("w") as output:
        started = command(model, port, "--ongoing", "2")
        process = subprocess.Popen(started, stdout=output, stderr=output)
        try:
            end = time.monotonic() + 180
            while "is served at" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end
                time.sleep(0.2)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()


def replicas() -> set[int]:
    """Processes of replicas on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if path.read_bytes().startswith(b"ray::ServeReplica:sapwood"):
                found.add(int(path.parent.name))
    return found


@needs_ray
@pytest.mark.slow
def test_a_fleet_on_ray_grows_shrinks_and_is_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_S", "0.5")
    model = make_tiny(tmp_path / "tiny")
    wanted = [Wish("whole", one) for one in questions(10, 1)]
    with on_ray(tmp_path, model) as port:
        right = {seen.wish.key: seen.text for seen in asyncio.run(crowd(port, wanted, 1))}
        found: list[Seen] = []
        ending = threading.Event()

        def load() -> None:
            while not ending.is_set():
                found.extend(asyncio.run(crowd(port, wanted * 2, 16)))

        loading = threading.Thread(target=load)
        loading.start()
        try:
            until(lambda: len(replicas()) == 3, 120)
            before = replicas()
            environment = {**os.environ, "RAY_ADDRESS": "auto"}
            update = command(model, port, "--ongoing", "3")
            done = subprocess.run(
                update, env=environment, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, done.stderr
            until(lambda: not before & replicas(), 120)
        finally:
            ending.set()
            loading.join()
        until(lambda: len(replicas()) == 1, 120)
        assert len(found) >= 40
        for seen in found:
            assert (seen.status, seen.complete, seen.trouble) == (200, True, "")
            assert seen.text == right[seen.wish.key]


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{len(replicas())} replicas"
        time.sleep(0.5)
