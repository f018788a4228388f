"""Memory and energy of a run.

The peak memory of this process is reset before each run, where the system allows it; it includes
the weights of everything loaded. Energy is that of the whole machine during the run: of its
processors from RAPL, of its GPU from NVML.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
SELF = Path("/proc/self")
NVML = "libnvidia-ml.so.1"

Meter = Callable[[], float]  # joules since some moment; only differences are used


@dataclass(slots=True)
class ResourceUse:
    """Peak memory and energy of a run."""

    memory: int | None = None  # bytes at the peak
    joules: float | None = None


class ResourceMeter:
    """Memory and energy counters of this machine."""

    def __init__(
        self, device: str = "cpu", powercap: Path = POWERCAP, process: Path = SELF
    ) -> None:
        self.device = device
        self.process = process
        self.meter, self.note = gpu_meter() if device.startswith("cuda") else cpu_meter(powercap)

    @contextmanager
    def watch(self) -> Iterator[ResourceUse]:
        """Measure a run; the values are filled in when it ends."""
        use = ResourceUse()
        whole = self._forget_peak()
        before = self.meter() if self.meter else 0.0
        yield use
        if self.meter:
            use.joules = max(self.meter() - before, 0.0)
        use.memory = self._peak() if whole else None

    def _forget_peak(self) -> bool:
        """Reset the peak to the present use; False if that is not possible."""
        if (cuda := cuda_of(self.device)) is not None:
            cuda.reset_peak_memory_stats()
            return True
        try:
            (self.process / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _peak(self) -> int | None:
        if (cuda := cuda_of(self.device)) is not None:
            return int(cuda.max_memory_allocated())
        lines = (self.process / "status").read_text().splitlines()
        # VmHWM is in kibibytes
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
        return found[0] if found else None


def cuda_of(device: str) -> Any:
    """`torch.cuda` if the device is CUDA and torch is loaded, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and device.startswith("cuda") else None


def cpu_meter(powercap: Path) -> tuple[Meter | None, str | None]:
    """Sum of the counters of all CPU packages; or the reason for none."""
    zones = [path for path in sorted(powercap.glob("*-rapl:*")) if is_package(path)]
    counters = [EnergyCounter(path) for path in zones if (path / "energy_uj").is_file()]
    if not counters:
        return None, "this machine has no RAPL counter under /sys/class/powercap"
    try:
        for counter in counters:
            counter.joules()
    except PermissionError:
        return None, "only root may read the RAPL counters"
    return lambda: sum(counter.joules() for counter in counters), None


def is_package(zone: Path) -> bool:
    """True for a CPU package; its parts and the whole platform would count energy twice."""
    name = zone / "name"
    platform = name.is_file() and name.read_text().strip() == "psys"
    return zone.name.count(":") == 1 and not platform


class EnergyCounter:
    """A RAPL counter in microjoules, which wraps around to zero."""

    def __init__(self, zone: Path) -> None:
        self.zone = zone
        self.last = 0
        self.turns = 0
        full = zone / "max_energy_range_uj"
        self.range = int(full.read_text()) if full.is_file() else 2**32

    def joules(self) -> float:
        """Joules since the first reading, wrap-arounds included."""
        now = int((self.zone / "energy_uj").read_text())
        self.turns += now < self.last
        self.last = now
        return (now + self.turns * self.range) / 1e6


def gpu_meter() -> tuple[Meter | None, str | None]:
    """Energy counter of the first GPU; or the reason for none."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return None, f"{NVML} is missing, which reports the GPU's energy"
    handle = ctypes.c_void_p()
    shown = ctypes.c_ulonglong()
    opened = (
        nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    )
    if not opened or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(shown)) != 0:
        return None, "this GPU does not report its energy"

    def joules() -> float:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(shown))
        return shown.value / 1000  # millijoules

    return joules, None
