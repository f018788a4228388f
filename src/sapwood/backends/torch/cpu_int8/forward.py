"""A whole pass in one compiled call that several threads run together.

Work is split by rows in norms and rounding, by blocks of outputs in matrix products and by heads in
attention; threads synchronise between stages. The arithmetic is that of the pass that runs layer
by layer, operation by operation, so both give the same bits.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.attention_pass import read, spread
from sapwood.backends.torch.cpu_int8.block_gemm import multiply_groups, put_groups
from sapwood.backends.torch.cpu_int8.block_tile import ROW_LINES
from sapwood.backends.torch.cpu_int8.int8_gemm import multiply, multiply_fine, put, put_fine
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, LINE, borrow
from sapwood.backends.torch.cpu_int8.pass_args import (
    BLOCKS,
    DEPTH,
    DOWN,
    GATE_UP,
    GROUPED,
    INPUTS,
    OUT,
    QKV,
    SPLIT,
)
from sapwood.backends.torch.cpu_int8.pointwise import compiled, inlined, level, open_gate, shrink
from sapwood.backends.torch.cpu_int8.thread_team import (
    COUNTERS,
    acting_worker,
    arrive,
    caller_leaves,
    fetch_all,
    finish,
    share,
    take,
    wait,
)
from sapwood.core.array_types import IntArray

PIECE = 64 * 1024  # bytes of weights in one item


# -------------------------------------------------------------------------------------------- rows
@inlined
def put_row(row: Any, place: Any, out: Any, r: int) -> None:
    """Quantise a row in [-1, 1] for a layer."""
    if place[INPUTS] == GROUPED:
        put_groups(row, out[ROW_LINES * r : ROW_LINES * (r + 1)])
    elif place[INPUTS] == SPLIT:
        put_fine(row, out[2 * r : 2 * r + 2])
    else:
        put(row, out[r : r + 1])


@inlined
def add_rows(work: Any, start: int, stop: int) -> None:
    """Add the last outputs to the residual stream."""
    for r in range(start, stop):
        for i in range(work.stream.shape[1]):
            work.stream[r, i] += work.products[r, i] * work.scales[r]


@inlined
def norm_and_quantise(work: Any, norm: Any, eps: Any, place: Any, start: int, stop: int) -> None:
    """Norm rows of the residual stream and quantise them for a layer."""
    width = work.stream.shape[1]
    for r in range(start, stop):
        row = work.stream[r]
        entered = work.entered[r, :width]
        rate = level(row, eps)
        for i in range(width):
            entered[i] = row[i] * norm[i]
        work.scales[r] = shrink(entered, entered) * rate
        put_row(entered, place, work.whole, r)


@inlined
def shrink_rows(work: Any, width: int, place: Any, start: int, stop: int) -> None:
    """Scale and quantise the inputs of a layer."""
    for r in range(start, stop):
        entered = work.entered[r, :width]
        work.scales[r] = shrink(entered, entered)
        put_row(entered, place, work.whole, r)


@inlined
def finish_rows(net: Any, work: Any, start: int, stop: int) -> None:
    """Final norm of rows; those that need logits are quantised for the output head."""
    width = work.stream.shape[1]
    for r in range(start, stop):
        row = work.stream[r]
        state = work.states[r]
        rate = level(row, net.eps)
        for i in range(width):
            state[i] = row[i] * net.norm[i] * rate
        if r < work.logits.shape[0]:
            entered = work.entered[r, :width]
            work.scales[r] = shrink(state, entered)
            put_row(entered, net.head, work.whole, r)


@inlined
def gate_columns(work: Any, inner: int, start: int, stop: int, worker: int) -> None:
    """Some columns of silu(gate) * up."""
    bits = work.bits[worker, : stop - start]
    for r in range(work.stream.shape[0]):
        row = work.products[r]
        open_gate(
            row[start:stop],
            row[inner + start : inner + stop],
            work.scales[r],
            work.entered[r, start:stop],
            bits,
        )


@inlined
def product(work: Any, place: Any, start: int, stop: int, after: int) -> None:
    """Some blocks of a layer's outputs."""
    rows = work.stream.shape[0]
    if place[INPUTS] == GROUPED:
        multiply_groups(place, work.whole, rows, start, stop, work.products, after)
    elif place[INPUTS] == SPLIT:
        multiply_fine(place, work.whole, rows, start, stop, work.products, after)
    else:
        multiply(place, work.whole, rows, start, stop, work.products, after)


@inlined
def project_logits(net: Any, work: Any, start: int, stop: int, after: int) -> None:
    """Some blocks of the logits."""
    rows = work.logits.shape[0]
    if net.head[INPUTS] == GROUPED:
        multiply_groups(net.head, work.whole, rows, start, stop, work.logits, after)
    else:
        multiply(net.head, work.whole, rows, start, stop, work.logits, after)
    for r in range(rows):
        scale = work.scales[r]
        for i in range(start * BLOCK, stop * BLOCK):
            work.logits[r, i] *= scale


@inlined
def begin(net: Any, work: Any, layer: int, part: int, added: bool, start: int, stop: int) -> None:
    """Prepare some rows for attention (part 0) or the MLP (part 1)."""
    if not added:
        add_rows(work, start, stop)
    if part == 0 and work.keep[layer] >= 0:
        work.kept[work.keep[layer], start:stop] = work.stream[start:stop]
    norm_and_quantise(
        work, net.norms[layer, part], net.eps, net.places[layer, 2 * part], start, stop
    )


@inlined
def end(net: Any, work: Any, ends: bool, added: bool, start: int, stop: int) -> None:
    """Finish some rows after the last layer."""
    if not added:
        add_rows(work, start, stop)
    if ends:
        finish_rows(net, work, start, stop)


# ------------------------------------------------------------------------------------------ stages
BEGIN, PRODUCT, SPREAD, READ, SHRINK, GATE, FINISH, LEAVE, SPEAK = range(9)
ATTENTION_STAGES = ((PRODUCT, QKV), (SPREAD, QKV), (READ, QKV), (SHRINK, OUT), (PRODUCT, OUT))
MLP_STAGES = ((PRODUCT, GATE_UP), (GATE, GATE_UP), (SHRINK, DOWN), (PRODUCT, DOWN))


@inlined
def act(
    net: Any, sessions: Any, work: Any, stage: Any, start: int, stop: int, after: int, worker: int
) -> None:
    """Run one item of a stage, units start to stop; `after` is the likely next start."""
    kind = stage[0]
    layer = stage[1]
    part = stage[2]
    added = stage[3]
    if kind == PRODUCT:
        product(work, net.places[layer, part], start, stop, after)
    elif kind == BEGIN:
        begin(net, work, layer, part, added, start, stop)
    elif kind == SPREAD:
        spread(net, sessions, work, layer, start, stop, worker)
    elif kind == READ:
        read(net, sessions, work, layer, start, stop, worker)
    elif kind == SHRINK:
        width = net.inner if part == DOWN else work.queries.shape[1] * work.queries.shape[2]
        shrink_rows(work, width, net.places[layer, part], start, stop)
    elif kind == GATE:
        gate_columns(work, net.inner, start, stop, worker)
    elif kind == SPEAK:
        project_logits(net, work, start, stop, after)
    else:
        end(net, work, kind == FINISH, added, start, stop)


@inlined
def extent(net: Any, work: Any, stage: Any, workers: int) -> tuple[int, int]:
    """Units of a stage, and its items: a few per worker, each some ten microseconds at most."""
    kind = stage[0]
    layer = stage[1]
    part = stage[2]
    rows = work.stream.shape[0]
    if kind in (PRODUCT, SPEAK):
        place = net.places[layer, part] if kind == PRODUCT else net.head
        units = place[BLOCKS]
        size = units * place[DEPTH] * LINE * max(rows // 8, 1)
        return units, min(units, workers * max(1, size // (workers * PIECE)))
    if kind == SPREAD:
        units = rows * (work.queries.shape[1] + 2 * net.kv_heads)
        grain = 64
    elif kind == READ:
        units = rows * net.kv_heads
        grain = 4
    elif kind == GATE:
        units = net.inner
        grain = max(256, 8192 // rows)
    else:
        units, grain = rows, 8
    return units, min(units, max(2 * workers, units // grain))


@compiled
def forward(
    net: Any, sessions: Any, work: Any, stages: Any, counters: Any, worker: int, workers: int
) -> int:
    """Run one worker's share of a pass; the number of times it yielded its core.

    Stages are int64 [n, 4], see `plan_stages`; counters int64 [1 + n, COUNTERS], of which the
    first row is the task's state.
    """
    net = borrow(net)
    sessions = borrow(sessions)
    work = borrow(work)
    state = counters.ctypes.data
    counter = state + 8 * COUNTERS
    yields = 0
    arrive(state, worker)
    for s in range(stages.shape[0]):
        stage = stages[s]
        units, items = extent(net, work, stage, workers)
        if items > 1 and caller_leaves(state, worker, workers):
            return yields
        item = take(counter, items, acting_worker(state, worker))
        while item < items:
            start, stop = share(units, item, items)
            act(
                net,
                sessions,
                work,
                stage,
                start,
                stop,
                share(units, min(item + workers, items), items)[0],
                worker,
            )
            finish(counter)
            item = take(counter, items, acting_worker(state, worker))
        yields += wait(counter, items)
        counter += 8 * COUNTERS
    if worker:
        fetch_all(work.prefetch, worker, workers)
    return yields


def plan_stages(first: int, stop: int, active: Any, ends: bool, speaks: bool) -> IntArray:
    """Stages of a pass through layers first to stop: kind, layer, part, outputs added or not."""
    stages = []
    added = 1
    for layer in range(first, stop):
        for part, steps in enumerate((ATTENTION_STAGES, MLP_STAGES)):
            stages.append((BEGIN, layer, part, added))
            added = int(not active[layer, part])
            stages += [] if added else [(kind, layer, which, 1) for kind, which in steps]
    stages.append((FINISH if ends else LEAVE, 0, 0, added))
    return np.array([*stages, *([(SPEAK, 0, 0, 1)] if speaks else [])])


def known() -> bool:
    """True if the pass is in the compile cache."""
    return cached(forward)


def cached(function: Any) -> bool:
    """True if a compiled function is in the compile cache."""
    stem = Path(function.py_func.__code__.co_filename).stem
    name = f"{stem}.{function.py_func.__name__}-*.nbi"
    return any(Path(function.stats.cache_path).glob(name))
