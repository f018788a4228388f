"""How a projection is cut into programs: tile sizes per shape, from a table that measurements refine."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

KERNELS = 3  # of this age of the kernels; what was measured of others is not believed
TILES = (16, 32, 64, 128)  # rows of a program
SMALL = 1 << 22  # weights of a projection whose time is that of its last byte to arrive, not of its bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The cut of one projection; outputs are counted as the weight's rows."""

    rows: int  # per program
    outputs: int  # per program
    inputs: int  # per step
    split: int = 1  # programs that share one tile's inputs
    warps: int = 4
    stages: int = 4  # steps whose loads are under way
    soon: bool = False  # the next kernel is launched before the loop, not after it: good while there is room for both
    library: bool = False  # the vendor's matrix product instead


LIBRARY = Plan(0, 0, 0, library=True)

Key = tuple[int, int, int, str]  # row tile, outputs, inputs, kind

MEASURED: dict[Key, Plan] = {}  # the fastest plans that were measured on this machine

# the fastest plans on an H200 for the shapes of SmolLM2-135M
KNOWN: dict[Key, Plan] = {
    (16, 960, 576, "qkv"): Plan(16, 16, 64, warps=2, stages=6, soon=True),
    (16, 576, 576, "plain"): Plan(16, 16, 64, warps=2, stages=6, soon=True),
    (16, 3072, 576, "gate"): Plan(16, 16, 64, warps=2, stages=6),
    (16, 576, 1536, "plain"): Plan(16, 16, 64, split=4, warps=2, stages=6),
    (16, 49152, 576, "norm"): Plan(16, 64, 64, stages=6),
    (32, 960, 576, "qkv"): Plan(16, 32, 64, stages=6, soon=True),
    (32, 576, 576, "plain"): Plan(16, 16, 64, warps=2, stages=6, soon=True),
    (32, 3072, 576, "gate"): Plan(32, 16, 64, warps=2, stages=6),
    (32, 576, 1536, "plain"): Plan(32, 32, 64, split=4, stages=6),
    (16, 14336, 576, "norm"): Plan(16, 64, 64, stages=6),  # its EAGLE-3 head's
    (32, 49152, 576, "norm"): Plan(32, 64, 64, stages=6),
    (64, 960, 576, "qkv"): Plan(64, 32, 64, soon=True),
    (64, 576, 576, "plain"): Plan(32, 32, 64, stages=6, soon=True),
    (64, 3072, 576, "gate"): Plan(64, 32, 64, stages=6),
    (64, 576, 1536, "plain"): Plan(64, 32, 64, split=4),
    (64, 49152, 576, "norm"): Plan(64, 128, 64),
    (128, 960, 576, "qkv"): Plan(32, 32, 64, stages=5),
    (128, 576, 576, "plain"): Plan(32, 32, 64, stages=5),
    (128, 3072, 576, "gate"): Plan(128, 64, 64),
    (128, 576, 1536, "plain"): Plan(32, 32, 64, stages=5),
    (128, 49152, 576, "norm"): LIBRARY,
}


def row_tile(m: int) -> int:
    """The smallest tile that holds so many rows."""
    return next((tile for tile in TILES if tile >= m), TILES[-1])


def plan_of(m: int, n: int, k: int, kind: str) -> Plan:
    """The plan for x [m, k] times a weight [n, k]; kinds are plain, norm, gate and qkv."""
    return known((row_tile(m), n, k, kind)) or first_guess(m, n, k, kind)


def known(key: Key) -> Plan | None:
    """A plan that somebody measured, here or before."""
    return MEASURED.get(key) or KNOWN.get(key)


def first_guess(m: int, n: int, k: int, kind: str) -> Plan:
    """The plan that shapes like this one turned out to like."""
    return _small_guess(row_tile(m), n, k, kind) if n * k <= SMALL else _large_guess(row_tile(m), k, kind)


def _small_guess(rows: int, n: int, k: int, kind: str) -> Plan:
    """Many programs with many short loads under way: none waits for long."""
    deep = kind == "plain" and k > n  # few outputs, many inputs
    soon = kind == "qkv" or (kind == "plain" and not deep)  # attention and the gate have much to ask for meanwhile
    if rows == 16:
        return Plan(16, 16, 64, 4 if deep else 1, warps=2, stages=6, soon=soon)
    if rows == 32:
        return Plan(32, 32, 64, 4, stages=6) if deep else Plan(16 if soon else 32, 16, 64, warps=2, stages=6, soon=soon)
    if kind == "gate":
        return Plan(rows, 32, 64, stages=6) if rows == 64 else Plan(rows, 64, 64)
    split = 4 if deep and rows == 64 else 1
    return Plan(rows if split > 1 else 32, 32, 64, split, stages=4 if split > 1 else 5, soon=soon)


def _large_guess(rows: int, k: int, kind: str) -> Plan:
    """The vendor's product; of few rows that nothing is done to, our own with long loads, two programs to a tile.

    Measured on an H200 for the shapes of an 8B model, microseconds against the vendor's: 12.4 to 15.1 and 33.8 to 35.6,
    where a norm or a gate comes first 38 to 22, 73 to 65 and 294 to 250.
    """
    if rows > 32 or kind != "plain":
        return LIBRARY
    return Plan(rows, 32, next((size for size in (128, 64) if k % size == 0), 128), split=2, stages=5)


def candidates(m: int, n: int, k: int, kind: str) -> Iterable[Plan]:
    """Plans worth a measurement, the guess first."""
    rows, guess = row_tile(m), first_guess(m, n, k, kind)
    found = [guess, *(_small(rows) if n * k <= SMALL else _large(rows, k))]
    if kind == "plain" and k > n:  # few outputs, many inputs
        few = [plan for plan in found if not plan.library][:3]
        found += [replace(plan, split=split) for plan in few for split in (2, 4)]
    return dict.fromkeys(found)


def shortlist(m: int, n: int, k: int, kind: str) -> Iterable[Plan]:
    """The few plans worth a measurement when nobody wants to wait, the guess first."""
    return dict.fromkeys([first_guess(m, n, k, kind), LIBRARY, Plan(row_tile(m), 64 if m > 32 else 32, 64)])


def _small(rows: int) -> list[Plan]:
    if rows <= 32:
        shapes = [(16, 128, 4, 4), (16, 64, 6, 2), (16, 256, 3, 4), (32, 64, 6, 4), (32, 128, 4, 4)]
        return [Plan(rows, outputs, inputs, warps=warps, stages=stages) for outputs, inputs, stages, warps in shapes]
    shorter = [Plan(16, 32, 64, stages=5), Plan(32, 32, 64, stages=5)]  # weights are read again by the next rows
    return [Plan(rows, 16, 64, stages=5), Plan(rows, 64, 64, stages=4), Plan(rows, 32, 128, stages=3), *shorter]


def _large(rows: int, k: int) -> list[Plan]:
    if rows <= 32:
        shapes = [(64, 64, 6, 4), (32, 256, 4, 4), (64, 128, 4, 4), (16, 256, 4, 4), (16, 512, 3, 4)]
    else:
        shapes = [(128, 64, 4, 4), (64, 128, 3, 4), (128, 64, 4, 8), (32, 64, 6, 4), (32, 128, 4, 4)]
    found = [Plan(rows, outputs, inputs, warps=warps, stages=stages) for outputs, inputs, stages, warps in shapes]
    return [*(plan for plan in found if k % plan.inputs == 0), LIBRARY]
