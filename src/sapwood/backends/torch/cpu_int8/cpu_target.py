"""The instructions that kernels are compiled for: the processor's best, or those of SAPWOOD_CPU.

`SAPWOOD_CPU=avx2` makes this processor work as one without VNNI would, `avxvnni` as one without
AVX-512; `none` leaves int8 layers to FBGEMM in torch. Results have the same bits with all of them.
"""

import os
import platform
from dataclasses import dataclass

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import config

from sapwood.errors import SapwoodError

VARIABLE = "SAPWOOD_CPU"
NONE = "none"
X86 = platform.machine() in ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """Vector instructions of a processor."""

    name: str
    feature: str  # LLVM's name of the instructions that it takes
    lanes: int  # int32 of a vector
    vnni: bool  # products of bytes are added up by one instruction
    rows: int  # rows of a tile whose sums fit the registers


# the best first
TARGETS = (
    CpuTarget("avx512", "avx512vnni", lanes=16, vnni=True, rows=8),
    CpuTarget("avxvnni", "avxvnni", lanes=8, vnni=True, rows=6),
    CpuTarget("avx2", "avx2", lanes=8, vnni=False, rows=4),
)
BASE = "x86-64-v3"  # LLVM's processor with AVX2, FMA and F16C


def choose(asked: str | None, features: dict[str, bool]) -> CpuTarget | None:
    """The target for a processor with these features; None if it has none of ours."""
    able = [target for target in TARGETS if features.get(target.feature)]
    if not asked:
        return able[0] if able else None
    names = [*(target.name for target in able), NONE]
    if asked not in names:
        raise SapwoodError(
            f"{VARIABLE}={asked} cannot be run on this processor; use {' or '.join(names)}"
        )
    return next((target for target in able if target.name == asked), None)


def restrict(target: CpuTarget) -> None:
    """Let numba compile for a target, not for all that this processor can do."""
    config.CPU_NAME = BASE  # type: ignore[attr-defined]
    config.CPU_FEATURES = "+avxvnni" if target.vnni else ""  # type: ignore[attr-defined]


def why_none() -> str:
    """The reason why this processor has no int8 kernels."""
    if not X86:
        return f"this processor ({platform.machine()}) has no int8 kernels, which are for x86"
    return "this processor has no AVX2, which int8 kernels need"


ASKED = os.environ.get(VARIABLE)
FEATURES = binding.get_host_cpu_features()
HAS_AVX2 = bool(FEATURES.get("avx2"))  # torch's own int8 layers need it too
TARGET = choose(ASKED, FEATURES)
if ASKED and TARGET is not None and TARGET.lanes < TARGETS[0].lanes:
    restrict(TARGET)
