"""A busy machine is noticed while passes are timed, and such a profile is not kept for long."""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.types import BackendInfo
from sapwood.engine import cost_profiler, machine_load
from sapwood.engine.cost_profiler import CostProfile
from sapwood.engine.machine_load import LoadMeter, busy_seconds, typical_spread


class Machine:
    """A machine of four cores whose clock and CPU times the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.busy, self.own = 0.0, 0.0, 0.0
        monkeypatch.setattr("sapwood.engine.machine_load.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("sapwood.engine.machine_load.os.cpu_count", lambda: 4)
        monkeypatch.setattr(machine_load, "SPREAD", 1.5)
        monkeypatch.setattr(machine_load, "busy_seconds", lambda: self.busy)
        monkeypatch.setattr(machine_load, "own_seconds", lambda: self.own)

    def run(self, seconds: float, *, own: float, others: float) -> None:
        """Let time pass with so many cores busy."""
        self.now += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def info(threads: int, device: str = "cpu") -> BackendInfo:
    return replace(ToyBackend().info, threads=threads, device=device)


@pytest.mark.parametrize(
    ("threads", "others", "busy"),
    [
        (4, 0.1, False),
        (4, 0.7, False),  # less than a fifth of the cores in use
        (4, 1.0, True),
        (2, 2.0, False),  # the other two cores were free
        (2, 2.3, False),
        (2, 2.5, True),
        (8, 1.0, False),
    ],
)
def test_cores_that_others_take(machine: Machine, threads: int, others: float, busy: bool) -> None:
    meter = LoadMeter()
    machine.run(2.0, own=float(threads), others=others)
    assert meter.other_cores() == pytest.approx(others)
    found = meter.disturbance(info(threads))
    assert (found is not None) is busy
    if busy:
        assert found == f"other processes kept {others:.1f} of 4 cores busy"


def test_a_short_time_tells_nothing(machine: Machine) -> None:
    meter = LoadMeter()
    machine.run(0.1, own=1, others=4)
    assert meter.other_cores() is None
    assert meter.disturbance(info(4)) is None


def test_spread_of_repeats(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    steady, varying = [1.0, 1.1, 1.0, 1.0, 1.1], [1.0, 2.0, 1.0, 3.0, 2.5]
    assert typical_spread([steady]) < 1.2
    assert typical_spread([varying]) == pytest.approx(2.5)
    assert typical_spread([[1.0, 9.0]]) == 1.0  # too few
    assert typical_spread([]) == 1.0
    meter = LoadMeter()
    machine.run(2.0, own=1, others=0)
    meter.samples.append(varying)
    assert meter.disturbance(info(4)) is None  # a CPU with no other load
    assert meter.disturbance(info(1, "cuda:0")) == (
        "the time of the same pass varied by a factor of 2.5"
    )
    monkeypatch.setattr(machine_load, "busy_seconds", lambda: None)  # as on macOS
    assert meter.disturbance(info(4)) is not None
    meter.samples[:] = [steady]
    assert meter.disturbance(info(4)) is None


def test_the_systems_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine_load, "STAT", stat)
    monkeypatch.setattr("sapwood.engine.machine_load.os.sysconf", lambda name: 100)
    assert busy_seconds() is None
    stat.write_text("cpu  100 20 300 99999 888 4 5 6 0 0\ncpu0 1 1 1 1\n")
    assert busy_seconds() == pytest.approx(4.35)  # neither idle nor waiting for a disk
    stat.write_text("nonsense")
    assert busy_seconds() is None


def test_a_profile_of_a_busy_machine_is_kept_for_some_minutes_only(
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(cost_profiler, "QUICK_S", 0.5)
    monkeypatch.setattr(cost_profiler, "WARNED", [])
    load = 3.5  # half of the one core that the toy runs on

    def once(target: object, session: object, tree: object) -> float:
        machine.run(0.05, own=1, others=load)
        return 0.05

    monkeypatch.setattr(cost_profiler, "once", once)
    toy = ToyBackend(context=600)
    made = CostProfile.open(toy.info)
    with caplog.at_level(logging.WARNING):
        made.measure(toy, lambda message: None, quick=True)
        CostProfile.open(toy.info).measure(toy, lambda message: None, quick=True)
    assert made.measured
    assert made.curve.seconds(1, 0) == pytest.approx(0.05)
    assert [record.getMessage() for record in caplog.records] == [
        "sapwood: the cost of a pass was measured while other processes kept 3.5 of 4 cores busy; "
        "it will be measured again in 10 minutes"
    ]
    made.keep(at_once=True)
    assert not made.path.exists()
    later = CostProfile.open(toy.info)
    assert later.measured
    assert later.curve.seconds(1, 0) == pytest.approx(0.05)
    later.keep(at_once=True)  # it is never taken for that of a quiet machine
    assert not made.path.exists()
    old = time.time() - cost_profiler.BUSY_S - 1
    os.utime(cost_profiler.busy_file(made.path), (old, old))
    assert not CostProfile.open(toy.info).measured
    cost_profiler.busy_file(made.path).write_text("damaged")
    assert not CostProfile.open(toy.info).measured

    made.measure(toy, lambda message: None, quick=True, keep_busy=True)  # `sapwood profile --keep`
    assert CostProfile.open(toy.info).measured
    made.path.unlink()
    load = 0.0
    quiet = CostProfile.open(toy.info)
    quiet.measure(toy, lambda message: None, quick=True)
    assert quiet.disturbance is None
    assert CostProfile.open(toy.info).measured
