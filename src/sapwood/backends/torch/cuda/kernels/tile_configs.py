"""Tile sizes of projections by shape, from a table that measurements refine.

Tiles may differ with the number of rows. The parts of the inputs, whose sums are added up at the
end, may not: they follow from the shape of the weight alone, so that a row has the same bits in
every pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sapwood.backends.torch.cuda.kernels.device_limits import (
    is_hopper,
    is_timed,
    shared_limit,
)

KERNELS = 4  # version of the kernels; measurements of other versions are ignored
TILES = (16, 32, 64, 128)  # rows of a program
WHOLE_STEP = 128  # inputs of a part are a multiple of this
BUSY = 160  # programs that read a large weight at full bandwidth
WIDE_TILE = 64 * 128  # sums of a program from which on 4 warps have too few registers
WIDEST_TILE = 128 * 128  # most sums of a program
SMALL = 1 << 22  # weights up to which a projection is bound by latency, not bandwidth


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes of one projection; outputs are counted as the weight's rows."""

    rows: int  # per program
    outputs: int  # per program
    inputs: int  # per step
    warps: int = 4
    stages: int = 4  # steps whose loads are under way
    # the next kernel is launched before the loop, not after it: good while there is room for both
    soon: bool = False

    @property
    def shared(self) -> int:
        """Most bytes of shared memory of a program, for 16-bit rows and weights."""
        return 2 * self.stages * (self.rows + self.outputs) * self.inputs


Key = tuple[int, int, int, str]  # row tile, outputs, inputs, kind

MEASURED: dict[Key, TileConfig] = {}  # the fastest plans that were measured on this machine

# the fastest plans on an H200 for the shapes of SmolLM2-135M
KNOWN: dict[Key, TileConfig] = {
    (16, 960, 576, "qkv"): TileConfig(16, 16, 64, warps=2, stages=6, soon=True),
    (16, 576, 576, "plain"): TileConfig(16, 16, 64, warps=2, stages=6, soon=True),
    (16, 3072, 576, "gate"): TileConfig(16, 16, 64, warps=2, stages=6),
    (16, 576, 1536, "plain"): TileConfig(16, 16, 64, warps=2, stages=6),
    (16, 49152, 576, "norm"): TileConfig(16, 64, 64, stages=6),
    (32, 960, 576, "qkv"): TileConfig(16, 32, 64, stages=6, soon=True),
    (32, 576, 576, "plain"): TileConfig(16, 16, 64, warps=2, stages=6, soon=True),
    (32, 3072, 576, "gate"): TileConfig(32, 16, 64, warps=2, stages=6),
    (32, 576, 1536, "plain"): TileConfig(32, 32, 64, stages=6),
    (16, 14336, 576, "norm"): TileConfig(16, 64, 64, stages=6),  # its EAGLE-3 head's
    (32, 49152, 576, "norm"): TileConfig(32, 64, 64, stages=6),
    (64, 960, 576, "qkv"): TileConfig(64, 32, 64, soon=True),
    (64, 576, 576, "plain"): TileConfig(32, 32, 64, stages=6, soon=True),
    (64, 3072, 576, "gate"): TileConfig(64, 32, 64, stages=6),
    (64, 576, 1536, "plain"): TileConfig(64, 32, 64),
    (64, 49152, 576, "norm"): TileConfig(64, 128, 64),
    (128, 960, 576, "qkv"): TileConfig(32, 32, 64, stages=5),
    (128, 576, 576, "plain"): TileConfig(32, 32, 64, stages=5),
    (128, 3072, 576, "gate"): TileConfig(128, 64, 64),
    (128, 576, 1536, "plain"): TileConfig(32, 32, 64, stages=5),
    (128, 49152, 576, "norm"): TileConfig(128, 128, 64, warps=8, stages=3),
}


def row_tile(m: int) -> int:
    """The smallest tile that holds so many rows."""
    return next((tile for tile in TILES if tile >= m), TILES[-1])


def plan_of(m: int, n: int, k: int, kind: str) -> TileConfig:
    """The plan for x [m, k] times a weight [n, k]; kinds are plain, norm, gate and qkv.

    A kind of quantised weights ends in their layout, as in gate-int8.
    """
    return known((row_tile(m), n, k, kind)) or first_guess(m, n, k, kind)


def known(key: Key) -> TileConfig | None:
    """A measured plan, from this machine or from the table."""
    return MEASURED.get(key) or KNOWN.get(key)


def timed(key: Key) -> bool:
    """True when the plan was timed on a card of this kind: a plan of the table only on an H200."""
    return key in MEASURED or (key in KNOWN and is_timed())


def first_guess(m: int, n: int, k: int, kind: str) -> TileConfig:
    """The plan that is usually fast for such shapes."""
    kind = kind.partition("-")[0]
    guess = _small_guess if n * k <= SMALL else _large_guess
    return fitting(guess(row_tile(m), n, k, kind))


def fitting(plan: TileConfig) -> TileConfig:
    """The plan with as many stages as the shared memory of the device holds."""
    each = plan.shared // plan.stages
    return replace(plan, stages=max(2, min(plan.stages, shared_limit() // each)))


def widened(plan: TileConfig, outputs: int) -> TileConfig:
    """The plan with this many outputs a program, and rows, warps and stages for them."""
    if outputs == plan.outputs:
        return plan
    rows = min(plan.rows, WIDEST_TILE // outputs)
    warps = 8 if rows * outputs >= WIDE_TILE else plan.warps
    return fitting(replace(plan, rows=rows, outputs=outputs, warps=warps))


def share_of(n: int, k: int, kind: str, split: int = 0) -> tuple[int, int]:
    """Parts of the inputs of a weight [n, k], and inputs of each part.

    A product of few outputs has too few tiles to keep a device busy, so programs share a tile.
    """
    if not split:
        split = 1
        if kind == "plain" and n * k > SMALL:
            split = 4 if k > 2 * n else 2
        elif kind == "plain" and k > n:
            split = 4
    share = -(-k // (split * WHOLE_STEP)) * WHOLE_STEP
    return -(-k // share), share


def _small_guess(rows: int, n: int, k: int, kind: str) -> TileConfig:
    """The plan for a small weight: many programs, each with many short loads under way."""
    deep = kind == "plain" and k > n  # few outputs, many inputs
    # attention and the gate have much to load meanwhile
    soon = kind == "qkv" or (kind == "plain" and not deep)
    if rows == 16:
        return TileConfig(16, 16, 64, warps=2, stages=6, soon=soon)
    if rows == 32:
        return (
            TileConfig(32, 32, 64, stages=6)
            if deep
            else TileConfig(16 if soon else 32, 16, 64, warps=2, stages=6, soon=soon)
        )
    if kind == "gate":
        return TileConfig(rows, 32, 64, stages=6) if rows == 64 else TileConfig(rows, 64, 64)
    return TileConfig(rows if deep else 32, 32, 64, stages=4 if deep else 5, soon=soon)


def _large_guess(rows: int, n: int, k: int, kind: str) -> TileConfig:
    """The plan for a large weight: the widest tiles that keep every multiprocessor busy."""
    parts = share_of(n, k, kind)[0]
    outputs = next((size for size in (128, 64) if parts * n >= BUSY * size), 32)
    if rows == 128:  # on other devices than a Hopper 4 warps have too few registers
        warps = 8 if outputs == 128 or not is_hopper() else 4
        return TileConfig(128, outputs, 64, warps=warps, stages=3)
    return TileConfig(rows, outputs, 64 if outputs == 128 else 128, stages=4)


def candidates(m: int, n: int, k: int, kind: str) -> Iterable[TileConfig]:
    """Plans worth a measurement, the guess first."""
    rows = row_tile(m)
    guess = first_guess(m, n, k, kind)
    others = _small(rows) if n * k <= SMALL else _large(rows, k)
    limit = shared_limit()
    return dict.fromkeys([guess, *(plan for plan in others if plan.shared <= limit)])


def shortlist(m: int, n: int, k: int, kind: str) -> Iterable[TileConfig]:
    """The few plans worth a measurement while a model is loaded, the one in use first."""
    rows = row_tile(m)
    return dict.fromkeys([plan_of(m, n, k, kind), TileConfig(rows, 64 if m > 32 else 32, 64)])


def _small(rows: int) -> list[TileConfig]:
    if rows <= 32:
        shapes = [(16, 128, 4, 4), (16, 64, 6, 2), (16, 256, 3, 4), (32, 64, 6, 4), (32, 128, 4, 4)]
        return [
            TileConfig(rows, outputs, inputs, warps=warps, stages=stages)
            for outputs, inputs, stages, warps in shapes
        ]
    # weights are read again by the next rows
    shorter = [TileConfig(16, 32, 64, stages=5), TileConfig(32, 32, 64, stages=5)]
    return [
        TileConfig(rows, 16, 64, stages=5),
        TileConfig(rows, 64, 64, stages=4),
        TileConfig(rows, 32, 128, stages=3),
        *shorter,
    ]


def _large(rows: int, k: int) -> list[TileConfig]:
    if rows <= 32:
        shapes = [
            (64, 64, 6, 4),
            (32, 256, 4, 4),
            (64, 128, 4, 4),
            (16, 256, 4, 4),
            (16, 512, 3, 4),
        ]
    else:
        shapes = [
            (128, 64, 4, 4),
            (64, 128, 3, 4),
            (128, 64, 4, 8),
            (32, 64, 6, 4),
            (32, 128, 4, 4),
        ]
    found = [
        TileConfig(rows, outputs, inputs, warps=warps, stages=stages)
        for outputs, inputs, stages, warps in shapes
    ]
    wider = [TileConfig(64, 128, 64), TileConfig(128, 128, 64, warps=8, stages=3)]
    return [*(plan for plan in found if k % plan.inputs == 0), *wider]
