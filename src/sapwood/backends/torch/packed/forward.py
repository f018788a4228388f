"""A whole pass in one compiled call that several threads run together.

Work is split by rows where a row is normed or rounded, by blocks of outputs in products and by heads in
attention; between the two everybody meets. The arithmetic is that of the pass layer by layer, number
by number, so both give the same bits.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sapwood.arrays import IntArray
from sapwood.backends.torch.packed.attend import read, spread
from sapwood.backends.torch.packed.kernels import compiled, inlined, level, open_gate, shrink
from sapwood.backends.torch.packed.machine import BLOCK, LINE, borrow
from sapwood.backends.torch.packed.plan import BLOCKS, DEPTH, DOWN, FINE, GATE_UP, OUT, QKV
from sapwood.backends.torch.packed.soon import fetch_all
from sapwood.backends.torch.packed.stream import multiply, multiply_fine, put, put_fine
from sapwood.backends.torch.packed.team import DESK, come, finish, leaves, share, stands_in, take, wait

PIECE = 64 * 1024  # bytes of weights that one worker reads at a time


# -------------------------------------------------------------------------------------------- rows
@inlined
def put_row(row: Any, place: Any, out: Any, r: int) -> None:
    """A row in [-1, 1] on the grid of a product."""
    if place[FINE]:
        put_fine(row, out[2 * r : 2 * r + 2])
    else:
        put(row, out[r : r + 1])


@inlined
def add_rows(work: Any, start: int, stop: int) -> None:
    """Add the last products to the stream."""
    for r in range(start, stop):
        for i in range(work.stream.shape[1]):
            work.stream[r, i] += work.products[r, i] * work.scales[r]


@inlined
def enter_rows(work: Any, norm: Any, eps: Any, place: Any, start: int, stop: int) -> None:
    """Norm rows of the stream and put them on the grid of a product."""
    width = work.stream.shape[1]
    for r in range(start, stop):
        row, entered = work.stream[r], work.entered[r, :width]
        rate = level(row, eps)
        for i in range(width):
            entered[i] = row[i] * norm[i]
        work.scales[r] = shrink(entered, entered) * rate
        put_row(entered, place, work.whole, r)


@inlined
def shrink_rows(work: Any, width: int, place: Any, start: int, stop: int) -> None:
    """Scale what a product reads, and put it on its grid."""
    for r in range(start, stop):
        entered = work.entered[r, :width]
        work.scales[r] = shrink(entered, entered)
        put_row(entered, place, work.whole, r)


@inlined
def finish_rows(net: Any, work: Any, start: int, stop: int) -> None:
    """What the output head reads, and on its grid for the rows that speak."""
    width = work.stream.shape[1]
    for r in range(start, stop):
        row, state = work.stream[r], work.states[r]
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
        open_gate(row[start:stop], row[inner + start : inner + stop], work.scales[r], work.entered[r, start:stop], bits)


@inlined
def product(work: Any, place: Any, start: int, stop: int, after: int) -> None:
    """Some blocks of a product."""
    rows = work.stream.shape[0]
    if place[FINE]:
        multiply_fine(place, work.whole, rows, start, stop, work.products, after)
    else:
        multiply(place, work.whole, rows, start, stop, work.products, after)


@inlined
def speak(net: Any, work: Any, start: int, stop: int, after: int) -> None:
    """Some blocks of the logits."""
    rows = work.logits.shape[0]
    multiply(net.head, work.whole, rows, start, stop, work.logits, after)
    for r in range(rows):
        scale = work.scales[r]
        for i in range(start * BLOCK, stop * BLOCK):
            work.logits[r, i] *= scale


@inlined
def begin(net: Any, work: Any, layer: int, part: int, added: bool, start: int, stop: int) -> None:
    """What comes before attention (part 0) or MLP (part 1), for some rows."""
    if not added:
        add_rows(work, start, stop)
    if part == 0 and work.keep[layer] >= 0:
        work.kept[work.keep[layer], start:stop] = work.stream[start:stop]
    enter_rows(work, net.norms[layer, part], net.eps, net.places[layer, 2 * part], start, stop)


@inlined
def end(net: Any, work: Any, ends: bool, added: bool, start: int, stop: int) -> None:
    """What comes after the last layer, for some rows."""
    if not added:
        add_rows(work, start, stop)
    if ends:
        finish_rows(net, work, start, stop)


# ------------------------------------------------------------------------------------------ stages
BEGIN, PRODUCT, SPREAD, READ, SHRINK, GATE, FINISH, LEAVE, SPEAK = range(9)
ATTEND = ((PRODUCT, QKV), (SPREAD, QKV), (READ, QKV), (SHRINK, OUT), (PRODUCT, OUT))
THINK = ((PRODUCT, GATE_UP), (GATE, GATE_UP), (SHRINK, DOWN), (PRODUCT, DOWN))


@inlined
def act(net: Any, crowd: Any, work: Any, stage: Any, start: int, stop: int, after: int, worker: int) -> None:
    """One item of a stage: units from start to stop; the worker's next one will probably begin with `after`."""
    kind, layer, part, added = stage[0], stage[1], stage[2], stage[3]
    if kind == PRODUCT:
        product(work, net.places[layer, part], start, stop, after)
    elif kind == BEGIN:
        begin(net, work, layer, part, added, start, stop)
    elif kind == SPREAD:
        spread(net, crowd, work, layer, start, stop, worker)
    elif kind == READ:
        read(net, crowd, work, layer, start, stop, worker)
    elif kind == SHRINK:
        width = net.inner if part == DOWN else work.queries.shape[1] * work.queries.shape[2]
        shrink_rows(work, width, net.places[layer, part], start, stop)
    elif kind == GATE:
        gate_columns(work, net.inner, start, stop, worker)
    elif kind == SPEAK:
        speak(net, work, start, stop, after)
    else:
        end(net, work, kind == FINISH, added, start, stop)


@inlined
def extent(net: Any, work: Any, stage: Any, workers: int) -> tuple[int, int]:
    """Units of a stage, and the items it is cut into: a few to a worker, none longer than some ten microseconds."""
    kind, layer, part = stage[0], stage[1], stage[2]
    rows = work.stream.shape[0]
    if kind in (PRODUCT, SPEAK):
        place = net.places[layer, part] if kind == PRODUCT else net.head
        units = place[BLOCKS]
        size = units * place[DEPTH] * LINE * max(rows // 8, 1)
        return units, min(units, workers * max(1, size // (workers * PIECE)))
    if kind == SPREAD:
        units, grain = rows * (work.queries.shape[1] + 2 * net.kv_heads), 64
    elif kind == READ:
        units, grain = rows * net.kv_heads, 4
    elif kind == GATE:
        units, grain = net.inner, max(BLOCK, 8192 // rows)
    else:
        units, grain = rows, 8
    return units, min(units, max(2 * workers, units // grain))


@compiled
def forward(net: Any, crowd: Any, work: Any, stages: Any, desks: Any, worker: int, workers: int) -> int:
    """One worker's share of a pass: stages int64 [.., 4], see `course`; desks int64 [1 + stages, DESK], the door first.

    Returns how often it waited in vain.
    """
    net, crowd, work, door = borrow(net), borrow(crowd), borrow(work), desks.ctypes.data
    desk, vain = door + 8 * DESK, 0
    come(door, worker)
    for s in range(stages.shape[0]):
        stage = stages[s]
        units, items = extent(net, work, stage, workers)
        if items > 1 and leaves(door, worker, workers):
            return vain
        item = take(desk, items, stands_in(door, worker))
        while item < items:
            start, stop = share(units, item, items)
            act(net, crowd, work, stage, start, stop, share(units, min(item + workers, items), items)[0], worker)
            finish(desk)
            item = take(desk, items, stands_in(door, worker))
        vain += wait(desk, items)
        desk += 8 * DESK
    if worker:
        fetch_all(work.soon, worker, workers)
    return vain


def course(first: int, stop: int, active: Any, ends: bool, speaks: bool) -> IntArray:
    """The stages of a pass through layers from `first` to `stop`: kind, layer, part, and what was added already."""
    stages, added = [], 1
    for layer in range(first, stop):
        for part, steps in enumerate((ATTEND, THINK)):
            stages.append((BEGIN, layer, part, added))
            added = int(not active[layer, part])
            stages += [] if added else [(kind, layer, which, 1) for kind, which in steps]
    stages.append((FINISH if ends else LEAVE, 0, 0, added))
    return np.array([*stages, *([(SPEAK, 0, 0, 1)] if speaks else [])])


def known() -> bool:
    """True where the pass was compiled before, on this machine or in this process."""
    stats: Any = forward.stats  # type: ignore[attr-defined]
    return any(Path(stats.cache_path).glob(f"{Path(__file__).stem}.forward-*.nbi"))
