"""What a run takes besides time: the memory it held at its peak, and the energy the machine says it drew.

The peak of this process is set back before each run, where the system lets us; it holds the weights of all that is
loaded. Energy is that of the whole machine during the run: of its processors from RAPL, of its GPU from NVML.
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

Meter = Callable[[], float]  # joules since some moment; differences count


@dataclass(slots=True)
class Reading:
    """What a run took."""

    memory: int | None = None  # bytes at the peak
    joules: float | None = None


class Gauges:
    """The instruments of this machine."""

    def __init__(self, device: str = "cpu", powercap: Path = POWERCAP, process: Path = SELF) -> None:
        self.device, self.process = device, process
        self.meter, self.note = gpu_meter() if device.startswith("cuda") else cpu_meter(powercap)

    @contextmanager
    def watch(self) -> Iterator[Reading]:
        """Fills its reading when the run is over."""
        reading, whole = Reading(), self._forget_peak()
        before = self.meter() if self.meter else 0.0
        yield reading
        if self.meter:
            reading.joules = max(self.meter() - before, 0.0)
        reading.memory = self._peak() if whole else None

    def _forget_peak(self) -> bool:
        """Set the peak back to what is held now; False where that cannot be."""
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
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]  # kibibytes
        return found[0] if found else None


def cuda_of(device: str) -> Any:
    """Torch's view of the GPU, if it is used: torch is not loaded for this alone."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and device.startswith("cuda") else None


def cpu_meter(powercap: Path) -> tuple[Meter | None, str | None]:
    """The sum of all packages' counters; or why there is none."""
    zones = [path for path in sorted(powercap.glob("*-rapl:*")) if path.name.count(":") == 1]  # packages, not parts
    counters = [Counter(path) for path in zones if (path / "energy_uj").is_file()]
    if not counters:
        return None, "this machine shows no RAPL counter under /sys/class/powercap"
    try:
        for counter in counters:
            counter.joules()
    except PermissionError:
        return None, "the RAPL counters may be read by root alone"
    return lambda: sum(counter.joules() for counter in counters), None


class Counter:
    """A counter of microjoules that starts again at zero when it is full."""

    def __init__(self, zone: Path) -> None:
        self.zone, self.last, self.turns = zone, 0, 0
        full = zone / "max_energy_range_uj"
        self.range = int(full.read_text()) if full.is_file() else 2**32

    def joules(self) -> float:
        """What it shows, full turns included."""
        now = int((self.zone / "energy_uj").read_text())
        self.turns += now < self.last
        self.last = now
        return (now + self.turns * self.range) / 1e6


def gpu_meter() -> tuple[Meter | None, str | None]:
    """The first GPU's counter; or why there is none."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return None, f"{NVML} is not there to tell the GPU's energy"
    handle, shown = ctypes.c_void_p(), ctypes.c_ulonglong()
    opened = nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    if not opened or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(shown)) != 0:
        return None, "this GPU does not tell its energy"

    def joules() -> float:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(shown))
        return shown.value / 1000  # millijoules

    return joules, None
