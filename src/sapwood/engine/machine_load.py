"""Detects a busy machine: CPU time that other processes used meanwhile, and spread of repeats."""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from sapwood.core.types import BackendInfo

STAT = Path("/proc/stat")  # Linux; elsewhere the spread alone decides
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq and time taken by a hypervisor
SHORTEST_S = 0.5  # a shorter measurement counts too few ticks
LOST = 0.2  # share of the cores in use that others may take
SPREAD = 1.5  # third quartile over first, of repeated passes of one size
REPEATS = 4  # fewest repeats of a size from which a spread is computed


def busy_seconds() -> float | None:
    """CPU seconds of all processes since the machine started; None where the system does not say.

    Cores on which this process may not run count too.
    """
    try:
        fields = STAT.read_text().partition("\n")[0].split()[1:]
        return sum(int(fields[index]) for index in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def own_seconds() -> float:
    """CPU seconds of this process."""
    return time.process_time()


class LoadMeter:
    """Measures from its creation on how many cores other processes keep busy."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.busy = busy_seconds()
        self.own = own_seconds()
        self.samples: list[Sequence[float]] = []  # seconds of repeated passes

    def other_cores(self) -> float | None:
        """Cores that other processes kept busy, on average; None if unknown or too early."""
        spent = time.perf_counter() - self.started
        busy = busy_seconds()
        if busy is None or self.busy is None or spent < SHORTEST_S:
            return None
        return max((busy - self.busy) - (own_seconds() - self.own), 0.0) / spent

    def disturbance(self, info: BackendInfo) -> str | None:
        """The reason not to trust the times measured since; None if there is none.

        On a GPU, and where the load is not known, a large spread of repeats counts too. On a CPU
        it may be the machine's own, such as a limit on CPU time.
        """
        others = self.other_cores()
        cores = os.cpu_count() or 1
        if others is not None and others - max(cores - info.threads, 0) > LOST * info.threads:
            return f"other processes kept {others:.1f} of {cores} cores busy"
        if others is None or info.device.startswith("cuda"):
            ratio = typical_spread(self.samples)
            if ratio > SPREAD:
                return f"the time of the same pass varied by a factor of {ratio:.1f}"
        return None


def typical_spread(samples: Iterable[Sequence[float]]) -> float:
    """Third quartile over first of repeated times, the median of all sizes; 1 for too few."""
    ratios = []
    for times in samples:
        if len(times) >= REPEATS:
            low, high = np.quantile(times, (0.25, 0.75))
            ratios.append(high / low if low > 0 else 1.0)
    return float(np.median(ratios)) if ratios else 1.0
