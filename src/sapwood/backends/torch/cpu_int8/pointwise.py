"""Compiled steps between the linear layers: norms, scaling, activation, without temporaries.

A row is computed by the same operations in the same order whatever the other rows are; sums over
keys are sums of integers, exact in float32 or int64, so their order cannot matter. Arrays are
float32 unless noted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit

from sapwood.backends.torch.cpu_int8.compile_cache import drop_stale
from sapwood.backends.torch.cpu_int8.simd import peak, power

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}


def compile_with(function: Function, **options: Any) -> Function:
    """Compile with these options beside those of all functions."""
    made = njit(**OPTIONS, **options)(function)
    drop_stale(Path(made.stats.cache_path))
    found: Function = made
    return found


def compiled(function: Function) -> Function:
    """Compile with the arithmetic as written."""
    return compile_with(function)


def inlined(function: Function) -> Function:
    """Compile inline: passing many tables as arguments would take longer than the work."""
    return compile_with(function, inline="always")


def reordered(function: Function) -> Function:
    """Compile with sums in any order: for sums of integers, which are exact."""
    return compile_with(function, fastmath={"reassoc", "contract"})


F = np.float32
I = np.int32  # noqa: E741
GRID = 127  # quantisation steps from 0 to 1 of a layer's inputs
EXACT = 1 << 24  # integers up to this are exact in float32
VALUE_LEVELS = 255  # largest integer of a value
UNIT = 1 << 20  # steps of the largest weight in the sum that normalises attention
FAR = F(-3.0e38)  # score of a hidden key


@compiled
def exponentiate(x: Any, bits: Any) -> None:
    """Replace x [n] <= 0 by exp(x), to 1e-6; `bits` [n] int32 is scratch."""
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
def exponential(x: Any) -> Any:
    """exp(x) for one x, with the bits of `exponentiate`."""
    one = np.empty(1, np.float32)
    one[0] = x
    exponentiate(one, np.empty(1, np.int32))
    return one[0]


@compiled
def soft_cap(row: Any, cap: Any, scratch: Any, bits: Any) -> Any:
    """Replace row [n] by cap * tanh(row / cap), hidden keys excepted; the largest."""
    count = row.shape[0]
    for i in range(count):
        scratch[i] = abs(row[i]) * (F(-2.0) / cap)
    exponentiate(scratch[:count], bits[:count])
    largest = FAR
    for i in range(count):
        if row[i] > FAR:
            near = cap * ((F(1.0) - scratch[i]) / (F(1.0) + scratch[i]))
            row[i] = near if row[i] >= F(0.0) else -near
            largest = max(largest, row[i])
    return largest


@compiled
def shrink(row: Any, out: Any) -> Any:
    """Scale a row to [-1, 1]; returns the divisor."""
    largest = peak(row.ctypes.data, row.shape[0])
    back = F(1.0) / largest if largest > F(0.0) else F(0.0)
    for i in range(row.shape[0]):
        out[i] = row[i] * back
    return largest


@compiled
def level(row: Any, eps: Any) -> Any:
    """Reciprocal of the row's root mean square."""
    return F(1.0) / np.sqrt(power(row.ctypes.data, row.shape[0]) / F(row.shape[0]) + eps)


@compiled
def norm_rows(x: Any, norm: Any, eps: Any, out: Any, scales: Any) -> None:
    """Norm rows x [rows, width] and scale them to [-1, 1]: out [rows, width], scales [rows]."""
    for r in range(x.shape[0]):
        rate = level(x[r], eps)
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * norm[i]
        scales[r] = shrink(out[r], out[r]) * rate


@compiled
def add(x: Any, y: Any, factors: Any) -> None:
    """Add y times the scale of each row to x [rows, width]."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += y[r, i] * factors[r]


@compiled
def add_norm_rows(x: Any, y: Any, factors: Any, norm: Any, eps: Any, out: Any, scales: Any) -> None:
    """`add`, then `norm_rows`."""
    add(x, y, factors)
    norm_rows(x, norm, eps, out, scales)


@compiled
def finish(x: Any, norm: Any, eps: Any, out: Any) -> None:
    """Norm rows without scaling, for the output head."""
    for r in range(x.shape[0]):
        rate = level(x[r], eps)
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * norm[i] * rate


@compiled
def present(states: Any, out: Any, scales: Any) -> None:
    """Scale rows to [-1, 1] without a norm."""
    for r in range(states.shape[0]):
        scales[r] = shrink(states[r], out[r])


@compiled
def part(rows: Any, out: Any) -> None:
    """Split rows [rows, width] into rounded rows and scaled remainders: out [2 * rows, width]."""
    count = rows.shape[0]
    for r in range(count):
        for i in range(rows.shape[1]):
            near = np.rint(rows[r, i] * F(GRID)) / F(GRID)
            out[r, i] = near
            out[count + r, i] = (rows[r, i] - near) * F(2 * GRID)


@compiled
def join(y: Any) -> None:
    """Add the outputs of the remainders to those of the rounded rows, y [2 * rows, outputs]."""
    count = y.shape[0] // 2
    for r in range(count):
        for i in range(y.shape[1]):
            y[r, i] += y[count + r, i] * F(1 / (2 * GRID))


SILU, GELU_TANH, SWIGLU_OAI = range(3)  # activations of the gate
ACTIVATIONS = {
    "silu": SILU,
    "swish": SILU,
    "gelu_pytorch_tanh": GELU_TANH,
    "swigluoai": SWIGLU_OAI,  # of gpt-oss: clamped, and one is added to up
}


class GateForm(NamedTuple):
    """Form of a gated MLP: from gate and up to the input of the down projection."""

    activation: Any
    slope: Any  # of the gate in the sigmoid
    limit: Any  # that clamps gate and up; infinite for none
    lift: Any  # added to up


def gate_form(activation: str, slope: float = 1.0, limit: float = 0.0) -> GateForm:
    """The form of an activation by its name; a limit of 0 is none."""
    kind = ACTIVATIONS[activation]
    most = limit if limit > 0 else np.inf
    return GateForm(kind, F(slope), F(most), F(1.0 if kind == SWIGLU_OAI else 0.0))


@inlined
def gate_exponent(value: Any, form: Any) -> Any:
    """The x of an activation value / (1 + exp(-x))."""
    if form.activation == GELU_TANH:
        cubed = F(0.044715) * (value * value * value)
        return F(1.5957691216057308) * (value + cubed)  # 2 sqrt(2 / pi)
    return value * form.slope


@compiled
def open_gate_with(
    gates: Any, ups: Any, bias: Any, factor: Any, form: Any, out: Any, bits: Any
) -> None:
    """`open_gate` of any form; `gates` and `ups` have `bias` [2, n] or [2, 0] added."""
    biased = bias.shape[1] > 0
    for i in range(out.shape[0]):
        opened = gates[i] * factor + bias[0, i] if biased else gates[i] * factor
        out[i] = -abs(gate_exponent(min(opened, form.limit), form))
    exponentiate(out, bits)
    for i in range(out.shape[0]):
        opened = gates[i] * factor + bias[0, i] if biased else gates[i] * factor
        other = ups[i] * factor + bias[1, i] if biased else ups[i] * factor
        opened = min(opened, form.limit)
        other = max(min(other, form.limit), -form.limit) + form.lift
        small = out[i]
        share = F(1.0) / (F(1.0) + small)
        out[i] = opened * (share if opened >= F(0.0) else small * share) * other


@compiled
def gate_with(y: Any, bias: Any, factors: Any, form: Any, out: Any, scales: Any, bits: Any) -> None:
    """`gate` of any form, with a bias [2, inner] or [2, 0]."""
    inner = out.shape[1]
    for r in range(y.shape[0]):
        open_gate_with(y[r, :inner], y[r, inner:], bias, factors[r], form, out[r], bits)
        scales[r] = shrink(out[r], out[r])


@compiled
def add_output(x: Any, y: Any, factor: Any, bias: Any, norm: Any, eps: Any, spare: Any) -> None:
    """Add the output y of a sublayer to x, all [n]: y * factor + bias, then its norm."""
    count = x.shape[0]
    for i in range(count):
        spare[i] = y[i] * factor
    if bias.shape[0]:
        for i in range(count):
            spare[i] += bias[i]
    if norm.shape[0]:
        rate = level(spare, eps)
        for i in range(count):
            spare[i] = spare[i] * norm[i] * rate
    for i in range(count):
        x[i] += spare[i]


@compiled
def norm_row(row: Any, factor: Any, norms: Any, queries: int, eps: Any) -> None:
    """Multiply the outputs of qkv by `factor` and norm all queries, and all keys, as one row."""
    for i in range(row.shape[0]):
        row[i] *= factor
    for start, stop in ((0, queries), (queries, norms.shape[0])):
        rate = level(row[start:stop], eps)
        for i in range(start, stop):
            row[i] = row[i] * norms[i] * rate


@compiled
def open_gate(gates: Any, ups: Any, factor: Any, out: Any, bits: Any) -> None:
    """Write silu(gates) * ups, both times `factor`; `bits` int32 is scratch, all [n]."""
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
    """Write silu(gate) * up of y [rows, 2 * inner] to out [rows, inner], scaled to [-1, 1]."""
    inner = out.shape[1]
    for r in range(y.shape[0]):
        open_gate(y[r, :inner], y[r, inner:], factors[r], out[r], bits)
        scales[r] = shrink(out[r], out[r])
