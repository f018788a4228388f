"""A compiled pass of models that are more than a Llama: norms after sublayers, biases, soft caps.

Beside `forward`, so that Llama's pass neither takes longer nor compiles longer. One compilation
serves all architectures: their parts are tables, and absent parts have size 0.
"""

from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.attention import mass_with_sink
from sapwood.backends.torch.cpu_int8.attention_pass import (
    divide,
    gather,
    memory,
    multiply,
    scale_products,
    spread,
)
from sapwood.backends.torch.cpu_int8.experts import (
    add_experts,
    copy_rows,
    expert_products,
    gate_experts,
    group_rows,
    route_rows,
)
from sapwood.backends.torch.cpu_int8.forward import (
    ATTENTION_STAGES,
    BEGIN,
    FINISH,
    GATE,
    LEAVE,
    MLP_STAGES,
    PIECE,
    PRODUCT,
    READ,
    SHRINK,
    SPEAK,
    SPREAD,
    cached,
    extent,
    finish_rows,
    norm_and_quantise,
    product,
    put_row,
    shrink_rows,
)
from sapwood.backends.torch.cpu_int8.forward import project_logits as project_plain_logits
from sapwood.backends.torch.cpu_int8.int_attention import IntKeys, decay, products_maker
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, LINE, borrow
from sapwood.backends.torch.cpu_int8.pass_args import (
    BLOCKS,
    COUNT,
    DEPTH,
    DOWN,
    FIRST,
    GATE_UP,
    INPUTS,
    LENGTH,
    QKV,
    RUN,
    RUNS,
    SEEN,
    SINCE,
)
from sapwood.backends.torch.cpu_int8.pointwise import (
    EXACT,
    FAR,
    UNIT,
    VALUE_LEVELS,
    F,
    add_output,
    compiled,
    inlined,
    norm_row,
    open_gate_with,
    shrink,
    soft_cap,
)
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

# stages beside those of `forward`
ROW_NORM, ROUTE, GROUP, COPY, EXPERT, EXPERT_GATE = range(SPEAK + 1, SPEAK + 7)
EXPERT_STAGES = (
    (ROUTE, GATE_UP), (GROUP, GATE_UP), (COPY, GATE_UP), (EXPERT, GATE_UP), (EXPERT_GATE, GATE_UP),
    (EXPERT, DOWN),
)  # fmt: skip
WIDEST = 256  # head width with a vector kernel beside those of `int_attention`
NOTHING = 1  # of a stage: no output of a sublayer has to be added
products_256 = products_maker(WIDEST, IntKeys())


# -------------------------------------------------------------------------------------------- rows
@inlined
def add_rows(
    net: Any, extra: Any, work: Any, room: Any, sublayer: int, start: int, stop: int
) -> None:
    """Add the outputs of a sublayer to the residual stream."""
    layer = sublayer // 2
    part = sublayer % 2
    width = work.stream.shape[1]
    norm = extra.post_norms[layer, part]
    if part == 1 and extra.routers.shape[2]:
        for r in range(start, stop):
            add_experts(
                work.stream[r], work.products, room.scales, room.slots[r], room.owners,
                room.shares[r], extra.down_bias[layer], norm, net.eps, work.entered[r, :width],
            )  # fmt: skip
    else:
        bias = extra.add_bias[layer, part]
        for r in range(start, stop):
            add_output(
                work.stream[r], work.products[r], work.scales[r], bias, norm, net.eps,
                work.entered[r, :width],
            )  # fmt: skip


@inlined
def begin(
    net: Any, extra: Any, work: Any, room: Any, layer: int, part: int, added: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Prepare some rows for attention (part 0) or the MLP (part 1)."""
    if added != NOTHING:
        add_rows(net, extra, work, room, -added, start, stop)
    if part == 0 and work.keep[layer] >= 0:
        work.kept[work.keep[layer], start:stop] = work.stream[start:stop]
    place = net.places[layer, 2 * part]
    if extra.pre_norms[layer]:
        norm_and_quantise(work, net.norms[layer, part], net.eps, place, start, stop)
    else:
        for r in range(start, stop):
            entered = work.entered[r, : work.stream.shape[1]]
            work.scales[r] = shrink(work.stream[r], entered)
            put_row(entered, place, work.whole, r)


@inlined
def norm_rows(net: Any, extra: Any, work: Any, layer: int, start: int, stop: int) -> None:
    """Norm all queries and all keys of some rows."""
    queries = work.queries.shape[1] * work.queries.shape[2]
    outputs = queries + 2 * net.kv_heads * work.queries.shape[2]
    for r in range(start, stop):
        row = work.products[r, :outputs]
        norm_row(row, work.scales[r], extra.row_norms[layer], queries, net.eps)
        work.scales[r] = F(1.0)


@inlined
def gate_columns(
    net: Any, extra: Any, work: Any, layer: int, start: int, stop: int, worker: int
) -> None:
    """Some columns of the gated MLP."""
    bits = work.bits[worker, : stop - start]
    bias = extra.gate_bias[layer, 0, :, start:stop]
    for r in range(work.stream.shape[0]):
        row = work.products[r]
        open_gate_with(
            row[start:stop],
            row[net.inner + start : net.inner + stop],
            bias,
            work.scales[r],
            extra.gate,
            work.entered[r, start:stop],
            bits,
        )


@inlined
def project_logits(
    net: Any, extra: Any, work: Any, room: Any, start: int, stop: int, after: int, worker: int
) -> None:
    """Some blocks of the logits."""
    project_plain_logits(net, work, start, stop, after)
    if extra.logit_cap > F(0.0):
        scratch = room.caps[worker]
        for r in range(work.logits.shape[0]):
            columns = work.logits[r, start * BLOCK : stop * BLOCK]
            soft_cap(columns, extra.logit_cap, scratch[0], scratch[1].view(np.int32))


# --------------------------------------------------------------------------------------- attention
@compiled
def multiply_wide(queries: Any, keys: Any, runs: Any, products: Any, count: int) -> None:
    """`attention_pass.multiply`, with vector kernels for heads of 256 too."""
    group, width = queries.shape
    if width != WIDEST:
        multiply(queries, keys, runs, products, count)
        return
    at = 0
    for run in range(runs.shape[0]):
        first = runs[run, 0]
        here = min(runs[run, 1], count - at)
        products_256(
            queries.ctypes.data,
            group,
            keys.ctypes.data + 2 * WIDEST * first,
            here,
            products.ctypes.data + 4 * at,
            products.shape[1],
        )
        at += here


@compiled
def softmax_terms(
    row: Any,
    step: Any,
    sizes: Any,
    runs: Any,
    length: int,
    first: int,
    seen: Any,
    cap: Any,
    sink: Any,
    scratch: Any,
    marks: Any,
) -> Any:
    """`attention_pass.softmax_terms` with soft caps and sinks."""
    keys = row.shape[0]
    start = row.ctypes.data
    for j in range(min(first, length)):
        row[j] = F(-3.0e38)
    scale_products(start, step, sizes, runs, keys, length, first, seen.ctypes.data, marks)
    if cap > F(0.0):
        marks[0] = soft_cap(row, cap, scratch[0], scratch[1].view(np.int32))
    total = decay(start, keys, marks[0])
    if marks[1] == F(0.0):
        return F(0.0)
    mass = F(total) / F(UNIT)
    part = F(EXACT // VALUE_LEVELS - 1 - int(marks[2])) / (mass * marks[1])
    marks[1] = part
    return F(1.0) / (part * mass_with_sink(mass, marks[0], sink))


@inlined
def read_group(
    net: Any, extra: Any, sessions: Any, work: Any, room: Any, held: Any, piece: Any,
    layer: int, r: int, k: int, worker: int,
) -> None:  # fmt: skip
    """Attention of one row for the heads that share keys and values."""
    planes, sizes = held
    group = work.weights.shape[1]
    sight = net.sights[layer]
    place = r - piece[FIRST]
    nodes = piece[SINCE] + place + 1  # visible nodes come before the row
    most = piece[SINCE] + piece[COUNT]
    keys = piece[LENGTH] + nodes
    runs = sessions.runs[piece[RUN] : piece[RUN] + piece[RUNS]]
    weights = work.weights[worker]
    shares = work.shares[worker]
    sums = work.sums[worker]
    marks = work.marks[worker]
    multiply_wide(work.queries[r, k * group : (k + 1) * group], planes[0, k], runs, weights, keys)
    seen = sessions.seen[sight, piece[SEEN] + place * most : piece[SEEN] + place * most + nodes]
    sums[:] = F(0.0)
    for g in range(group):
        h = k * group + g
        sink = extra.sinks[layer, h] if extra.sinks.shape[1] else FAR
        marks[3 + g] = softmax_terms(
            weights[g, :keys], work.steps[r, h], sizes[:, k], runs, piece[LENGTH],
            sessions.oldest[sight, r], seen, extra.attention_cap, sink, room.caps[worker], marks,
        )  # fmt: skip
        divide(weights[g, :keys], sizes[:, k], runs, marks[1], planes[1, k], shares[g], sums[:, g])
    gather(shares, planes[1, k], runs, sums, keys)
    strips, _, width = sums.shape
    for g in range(group):
        for strip in range(strips):
            start = ((k * group + g) * strips + strip) * width
            for i in range(width):
                work.entered[r, start + i] = sums[strip, g, i] * marks[3 + g]


@inlined
def read(
    net: Any, extra: Any, sessions: Any, work: Any, room: Any, layer: int, start: int, stop: int,
    worker: int,
) -> None:  # fmt: skip
    """Attention of some rows and heads, session by session, grouped by shared keys."""
    for p in range(sessions.pieces.shape[0]):
        piece = sessions.pieces[p]
        held = memory(net, work, piece, layer)
        rows = piece[COUNT]
        first = piece[FIRST] * net.kv_heads
        for unit in range(max(start - first, 0), min(stop - first, rows * net.kv_heads)):
            read_group(
                net, extra, sessions, work, room, held, piece, layer,
                piece[FIRST] + unit % rows, unit // rows, worker,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------ stages
@inlined
def act(
    net: Any, extra: Any, sessions: Any, work: Any, room: Any, stage: Any,
    start: int, stop: int, after: int, worker: int,
) -> None:  # fmt: skip
    """Run one item of a stage, units start to stop; `after` is the likely next start."""
    kind = stage[0]
    layer = stage[1]
    part = stage[2]
    added = stage[3]
    if kind == PRODUCT:
        product(work, net.places[layer, part], start, stop, after)
    elif kind == BEGIN:
        begin(net, extra, work, room, layer, part, added, start, stop)
    elif kind == ROW_NORM:
        norm_rows(net, extra, work, layer, start, stop)
    elif kind == SPREAD:
        spread(net, sessions, work, layer, start, stop, worker)
    elif kind == READ:
        read(net, extra, sessions, work, room, layer, start, stop, worker)
    elif kind == SHRINK:
        width = net.inner if part == DOWN else work.queries.shape[1] * work.queries.shape[2]
        shrink_rows(work, width, net.places[layer, part], start, stop)
    elif kind == GATE:
        gate_columns(net, extra, work, layer, start, stop, worker)
    elif kind == ROUTE:
        route_rows(extra, work, room, layer, start, stop)
    elif kind == GROUP:
        group_rows(room.picks, room.firsts, room.active, room.slots, room.owners)
    elif kind == COPY:
        copy_rows(work, room, extra.experts[layer, 0, 0, INPUTS], start, stop)
    elif kind == EXPERT:
        expert_products(extra, work, room, layer, part, start, stop)
    elif kind == EXPERT_GATE:
        gate_experts(net, extra, work, room, layer, start, stop, worker)
    elif kind == SPEAK:
        project_logits(net, extra, work, room, start, stop, after, worker)
    else:
        if added != NOTHING:
            add_rows(net, extra, work, room, -added, start, stop)
        if kind == FINISH:
            finish_rows(net, work, start, stop)


@inlined
def extended_extent(
    net: Any, extra: Any, work: Any, room: Any, stage: Any, workers: int
) -> tuple[int, int]:
    """Units and items of a stage, as `extent`."""
    kind = stage[0]
    if kind == EXPERT:
        where = extra.experts[stage[1], stage[2] - GATE_UP, 0]
        units = room.active[0] * where[BLOCKS]
        size = units * where[DEPTH] * LINE
        return units, min(units, workers * max(1, size // (workers * PIECE)))
    if kind == GROUP:
        return 1, 1
    if kind == EXPERT_GATE:
        units = room.slots.shape[0] * room.slots.shape[1]
        return units, min(units, max(2 * workers, units // 4))
    return extent(net, work, stage, workers)


@compiled
def forward_extended(
    net: Any, extra: Any, sessions: Any, work: Any, room: Any, stages: Any, counters: Any,
    worker: int, workers: int,
) -> int:  # fmt: skip
    """`forward.forward` for an extended network."""
    net = borrow(net)
    extra = borrow(extra)
    sessions = borrow(sessions)
    work = borrow(work)
    room = borrow(room)
    state = counters.ctypes.data
    counter = state + 8 * COUNTERS
    yields = 0
    arrive(state, worker)
    for s in range(stages.shape[0]):
        stage = stages[s]
        units, items = extended_extent(net, extra, work, room, stage, workers)
        if items > 1 and caller_leaves(state, worker, workers):
            return yields
        item = take(counter, items, acting_worker(state, worker))
        while item < items:
            start, stop = share(units, item, items)
            after = share(units, min(item + workers, items), items)[0]
            act(net, extra, sessions, work, room, stage, start, stop, after, worker)
            finish(counter)
            item = take(counter, items, acting_worker(state, worker))
        yields += wait(counter, items)
        counter += 8 * COUNTERS
    if worker:
        fetch_all(work.prefetch, worker, workers)
    return yields


def plan_extended(
    first: int, stop: int, active: Any, row_norms: bool, experts: bool, ends: bool, speaks: bool
) -> IntArray:
    """Stages of a pass: kind, layer, part, and minus the sublayer to add, or NOTHING."""
    stages = []
    added = NOTHING
    attention = list(ATTENTION_STAGES)
    if row_norms:
        attention.insert(1, (ROW_NORM, QKV))
    for layer in range(first, stop):
        for part, steps in enumerate((attention, EXPERT_STAGES if experts else MLP_STAGES)):
            stages.append((BEGIN, layer, part, added))
            added = NOTHING
            if active[layer, part]:
                stages += [(kind, layer, which, NOTHING) for kind, which in steps]
                added = -(2 * layer + part)
    stages.append((FINISH if ends else LEAVE, 0, 0, added))
    return np.array([*stages, *([(SPEAK, 0, 0, NOTHING)] if speaks else [])])


def known() -> bool:
    """True if the pass is in the compile cache."""
    return cached(forward_extended)
