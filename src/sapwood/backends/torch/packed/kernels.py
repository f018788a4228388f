"""What lies between the linear layers, compiled for this CPU: one pass over each row, no temporary arrays.

Every number of a row is computed by the same operations in the same order whatever the other rows
are; sums over keys are sums of whole numbers, exact in float32 or int64, so their order cannot matter.
Arrays are float32 unless said otherwise.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from sapwood.backends.torch.packed.vectors import peak, power

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Machine code with the arithmetic as written."""
    made: Function = njit(**OPTIONS)(function)
    return made


def inlined(function: Function) -> Function:
    """Code that is put in place of its calls: for functions whose tables would take longer to hand over than to use."""
    made: Function = njit(**OPTIONS, inline="always")(function)
    return made


def reordered(function: Function) -> Function:
    """Machine code that may add in any order: for sums of whole numbers, which are exact."""
    made: Function = njit(**OPTIONS, fastmath={"reassoc", "contract"})(function)
    return made


F = np.float32
I = np.int32  # noqa: E741
GRID = 127  # steps from 0 to 1 that packed layers round rows to
EXACT = 1 << 24  # whole numbers up to this are exact in float32
VALUE_LEVELS = 255  # whole numbers on each side of zero that a value may take
UNIT = 1 << 20  # steps of the largest weight in the sum that normalises attention
FAR = F(-3.0e38)  # of a key that is not seen


@compiled
def exponentiate(x: Any, bits: Any) -> None:
    """X [n] <- exp(x) for x <= 0, to 1e-6; `bits` [n] int32 is scratch."""
    powers = bits.view(np.float32)
    for i in range(x.shape[0]):
        y = max(x[i] * F(1.4426950408889634), F(-126.0))
        whole = np.floor(y)
        part = y - whole
        value = F(1.8775767e-3)  # a polynomial of 2^part on [0, 1)
        value = value * part + F(8.9893397e-3)
        value = value * part + F(5.5826318e-2)
        value = value * part + F(2.4015361e-1)
        value = value * part + F(6.9315308e-1)
        value = value * part + F(9.9999994e-1)
        x[i] = value
        bits[i] = (I(whole) + I(127)) << I(23)
    for i in range(x.shape[0]):
        x[i] *= powers[i]


@compiled
def shrink(row: Any, out: Any) -> Any:
    """Out <- row scaled to [-1, 1]; returns what it was divided by."""
    largest = peak(row.ctypes.data, row.shape[0])
    back = F(1.0) / largest if largest > F(0.0) else F(0.0)
    for i in range(row.shape[0]):
        out[i] = row[i] * back
    return largest


@compiled
def level(row: Any, eps: Any) -> Any:
    """One over the root of the row's mean square."""
    return F(1.0) / np.sqrt(power(row.ctypes.data, row.shape[0]) / F(row.shape[0]) + eps)


@compiled
def enter(x: Any, norm: Any, eps: Any, out: Any, scales: Any) -> None:
    """Norm rows x [rows, width] and scale them for a packed layer: out [rows, width], scales [rows]."""
    for r in range(x.shape[0]):
        rate = level(x[r], eps)
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * norm[i]
        scales[r] = shrink(out[r], out[r]) * rate


@compiled
def add(x: Any, y: Any, factors: Any) -> None:
    """X [rows, width] += y times the scale of each row."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += y[r, i] * factors[r]


@compiled
def add_enter(x: Any, y: Any, factors: Any, norm: Any, eps: Any, out: Any, scales: Any) -> None:
    """`add`, then `enter`."""
    add(x, y, factors)
    enter(x, norm, eps, out, scales)


@compiled
def finish(x: Any, norm: Any, eps: Any, out: Any) -> None:
    """The normed rows themselves, as the output head reads them."""
    for r in range(x.shape[0]):
        rate = level(x[r], eps)
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * norm[i] * rate


@compiled
def present(states: Any, out: Any, scales: Any) -> None:
    """Scale rows for a packed layer as they are."""
    for r in range(states.shape[0]):
        scales[r] = shrink(states[r], out[r])


@compiled
def part(rows: Any, out: Any) -> None:
    """Rows [rows, width] on the grid, and below them what is left, stretched to [-1, 1]: out [2 * rows, width]."""
    count = rows.shape[0]
    for r in range(count):
        for i in range(rows.shape[1]):
            near = np.rint(rows[r, i] * F(GRID)) / F(GRID)
            out[r, i] = near
            out[count + r, i] = (rows[r, i] - near) * F(2 * GRID)


@compiled
def join(y: Any) -> None:
    """Add the products of the second parts to those of the first, y [2 * rows, outputs]."""
    count = y.shape[0] // 2
    for r in range(count):
        for i in range(y.shape[1]):
            y[r, i] += y[count + r, i] * F(1 / (2 * GRID))


@compiled
def open_gate(gates: Any, ups: Any, factor: Any, out: Any, bits: Any) -> None:
    """Out <- silu(gates) * ups, both to be scaled; `bits` int32 is scratch, all [n]."""
    for i in range(out.shape[0]):
        out[i] = -abs(gates[i] * factor)
    exponentiate(out, bits)
    for i in range(out.shape[0]):
        opened = gates[i] * factor
        small = out[i]
        share = F(1.0) / (F(1.0) + small)
        out[i] = opened * (share if opened >= F(0.0) else small * share) * (ups[i] * factor)


@compiled
def gate(y: Any, factors: Any, out: Any, scales: Any, bits: Any) -> None:
    """Out [rows, inner] <- silu(gate) * up of y [rows, 2 * inner], scaled for a packed layer."""
    inner = out.shape[1]
    for r in range(y.shape[0]):
        open_gate(y[r, :inner], y[r, inner:], factors[r], out[r], bits)
        scales[r] = shrink(out[r], out[r])
