"""Memory at the peak and energy, from counters that are files."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sapwood.bench import resources
from sapwood.bench.resources import EnergyCounter, ResourceMeter, cpu_meter, cuda_of, gpu_meter


def zone(
    folder: Path, name: str, micros: int, full: int | None = 10_000_000, word: str = ""
) -> Path:
    """A counter as the system shows it."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "energy_uj").write_text(f"{micros}\n")
    if full is not None:
        (path / "max_energy_range_uj").write_text(f"{full}\n")
    if word:
        (path / "name").write_text(f"{word}\n")
    return path


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """What the system shows of a process."""
    folder = tmp_path / "self"
    folder.mkdir()
    (folder / "status").write_text("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t 300 kB\nVmRSS:\t 5 kB\n")
    (folder / "clear_refs").write_text("")
    return folder


# ----------------------------------------------------------------------------------------- energy
def test_a_counter_shows_joules_over_full_turns(tmp_path: Path) -> None:
    counter = EnergyCounter(zone(tmp_path, "intel-rapl:0", 2_000_000))
    shown = [counter.joules()]
    for micros in (9_000_000, 1_000_000, 1_000_000, 500_000):
        zone(tmp_path, "intel-rapl:0", micros)
        shown.append(counter.joules())
    assert shown == [2.0, 9.0, 11.0, 11.0, 20.5]


def test_a_counter_that_does_not_say_when_it_is_full_has_32_bits(tmp_path: Path) -> None:
    counter = EnergyCounter(zone(tmp_path, "intel-rapl:0", 5_000_000, full=None))
    assert counter.joules() == 5.0
    zone(tmp_path, "intel-rapl:0", 0, full=None)
    assert counter.joules() == pytest.approx(2**32 / 1e6)


def test_packages_are_summed_and_their_parts_are_not(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 1_000_000, word="package-0")
    zone(tmp_path, "intel-rapl:1", 2_000_000, word="package-1")
    zone(tmp_path, "intel-rapl:0:0", 4_000_000, word="core")
    zone(tmp_path, "amd-rapl:0", 8_000_000)
    (tmp_path / "intel-rapl").mkdir()
    (tmp_path / "intel-rapl:2").mkdir()  # without a counter
    meter, note = cpu_meter(tmp_path)
    assert note is None
    assert meter is not None
    assert meter() == 11.0


def test_the_counter_of_the_whole_platform_is_not_added_to_its_packages(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 1_000_000, word="package-0")
    zone(tmp_path, "intel-rapl:1", 30_000_000, word="psys")
    meter, _ = cpu_meter(tmp_path)
    assert meter is not None
    assert meter() == 1.0


def test_counters_for_root_alone_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0", 1)

    def closed(self: EnergyCounter) -> float:
        raise PermissionError

    monkeypatch.setattr(EnergyCounter, "joules", closed)
    assert cpu_meter(tmp_path) == (None, "only root may read the RAPL counters")


# ------------------------------------------------------------------------------------------- runs
def test_a_run_is_watched(tmp_path: Path, process: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 1_000_000)
    meter = ResourceMeter("cpu", tmp_path, process)
    with meter.watch() as use:
        assert (use.memory, use.joules) == (None, None)
        assert (process / "clear_refs").read_text() == "5"
        zone(tmp_path, "intel-rapl:0", 3_500_000)
    assert (use.memory, use.joules) == (300 * 1024, 2.5)


def test_a_peak_that_cannot_be_set_back_is_not_told(tmp_path: Path, process: Path) -> None:
    (process / "clear_refs").unlink()
    (process / "clear_refs").mkdir()
    with ResourceMeter("cpu", tmp_path, process).watch() as use:
        pass
    assert use.memory is None


def test_a_status_without_a_peak_is_not_told(tmp_path: Path, process: Path) -> None:
    (process / "status").write_text("Name:\tx\n")
    with ResourceMeter("cpu", tmp_path, process).watch() as use:
        pass
    assert use.memory is None


def test_a_counter_that_was_set_back_is_no_energy_below_zero(tmp_path: Path, process: Path) -> None:
    shown = iter([5.0, 3.0])
    meter = ResourceMeter("cpu", tmp_path, process)
    meter.meter = lambda: next(shown)
    with meter.watch() as use:
        pass
    assert use.joules == 0.0


# -------------------------------------------------------------------------------------------- GPU
class FakeNvml:
    """NVML with a counter that rises by 1500 millijoules at each look; `broken` fails at one call."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.shown = 0

    def _code(self, name: str) -> int:
        return int(self.broken == name)

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self._code("init")

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        assert index == 0
        return self._code("handle")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, shown: Any) -> int:  # noqa: N802
        self.shown += 1500
        shown._obj.value = self.shown
        return self._code("energy")


def test_a_gpu_tells_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml())
    meter, note = gpu_meter()
    assert note is None
    assert meter is not None
    assert [meter(), meter()] == [3.0, 4.5]  # it was asked once to see whether it tells


@pytest.mark.parametrize("broken", ["init", "handle", "energy"])
def test_a_gpu_that_does_not_tell_is_said_to_be_silent(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml(broken))
    assert gpu_meter() == (None, "this GPU does not report its energy")


def test_the_peak_of_a_gpu_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    cuda = SimpleNamespace(
        reset_peak_memory_stats=lambda: resets.append(1), max_memory_allocated=lambda: 777
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(resources, "gpu_meter", lambda: (None, "silent"))
    meter = ResourceMeter("cuda:0")
    with meter.watch() as use:
        assert resets == [1]
    assert (use.memory, use.joules, meter.note) == (777, None, "silent")


def test_torch_is_not_loaded_to_ask_for_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert cuda_of("cuda") is None
    assert "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda="it"))
    assert cuda_of("cuda:1") == "it"
    assert cuda_of("cpu") is None
