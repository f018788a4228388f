"""Attention stages of a compiled pass: split rows into heads, and attend."""

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from sapwood.backends.torch.cpu_int8.attention import gather_run, multiply_run, normed
from sapwood.backends.torch.cpu_int8.int_attention import (
    FOUND,
    HEADS,
    SHORT,
    STRIP,
    decay,
    measure,
    measure_seen,
    portion,
    products_64,
    products_128,
)
from sapwood.backends.torch.cpu_int8.int_values import int_sums
from sapwood.backends.torch.cpu_int8.intrinsics import floats_at, shorts_at
from sapwood.backends.torch.cpu_int8.pass_args import (
    COUNT,
    FIRST,
    LENGTH,
    PLANES,
    RUN,
    RUNS,
    SEEN,
    SINCE,
    SIZES,
    SLOTS,
)
from sapwood.backends.torch.cpu_int8.pointwise import (
    EXACT,
    FAR,
    UNIT,
    VALUE_LEVELS,
    F,
    compiled,
    inlined,
)
from sapwood.backends.torch.cpu_int8.simd import peak, round_to, turn


@inlined
def memory(net: Any, work: Any, piece: Any, layer: int) -> Any:
    """Keys and values of a layer, [2, kv heads, slots, head width], and their steps."""
    width = work.queries.shape[2]
    slots = piece[SLOTS]
    heads = 2 * net.kv_heads * slots * layer  # of the layers before
    planes = carray(shorts_at(piece[PLANES] + 2 * heads * width), (2, net.kv_heads, slots, width))
    return planes, carray(floats_at(piece[SIZES] + 4 * heads), (2, net.kv_heads, slots, 1))


@compiled
def whole(row: Any, most: int, out: int) -> Any:
    """`attention.whole` to int16 at an address; the quantisation step."""
    count = row.shape[0]
    largest = peak(row.ctypes.data, count)
    if largest == F(0.0):
        round_to(row.ctypes.data, count, F(0.0), out)
        return F(0.0)
    round_to(row.ctypes.data, count, F(most) / largest, out)
    return largest / F(most)


@inlined
def spread_head(
    net: Any, sessions: Any, work: Any, held: Any, layer: int, r: int, h: int, spare: Any
) -> None:
    """Rotate and quantise one query, key or value; keys and values go to their slot."""
    planes, sizes = held
    heads = work.queries.shape[1]
    width = work.queries.shape[2]
    slot = sessions.slots[r]
    head = spare[0]
    scale = work.scales[r]
    for i in range(width):
        head[i] = work.products[r, h * width + i] * scale
    if net.bias.shape[1]:
        for i in range(width):
            head[i] += net.bias[layer, h * width + i]
    if h >= heads + net.kv_heads:
        k = h - heads - net.kv_heads
        sizes[1, k, slot, 0] = whole(head, VALUE_LEVELS, planes[1, k, slot].ctypes.data)
        return
    normed(head, net.head_norms[layer, 0 if h < heads else 1], net.eps)
    half = width // 2
    turns = sessions.turns[net.rotary[layer]]
    turned = spare[1]
    turn(
        head.ctypes.data, turns[0, r].ctypes.data, turns[1, r].ctypes.data, half, turned.ctypes.data
    )
    if h < heads:
        work.steps[r, h] = whole(turned, net.levels, work.queries[r, h].ctypes.data) * net.scale
    else:
        sizes[0, h - heads, slot, 0] = whole(
            turned, net.levels, planes[0, h - heads, slot].ctypes.data
        )


@inlined
def spread(
    net: Any, sessions: Any, work: Any, layer: int, start: int, stop: int, worker: int
) -> None:
    """Split some heads of the rows, row by row."""
    heads = work.queries.shape[1] + 2 * net.kv_heads
    for p in range(sessions.pieces.shape[0]):
        piece = sessions.pieces[p]
        held = memory(net, work, piece, layer)
        first, last = piece[FIRST] * heads, (piece[FIRST] + piece[COUNT]) * heads
        for unit in range(max(start, first), min(stop, last)):
            spread_head(
                net, sessions, work, held, layer, unit // heads, unit % heads, work.spare[worker]
            )


@compiled
def scale_products(
    row: int,
    step: Any,
    sizes: Any,
    runs: Any,
    keys: int,
    length: int,
    first: int,
    seen: int,
    marks: Any,
) -> None:
    """Scale products at address `row`; marks <- largest, largest step of values, visible keys."""
    marks[0], marks[1], marks[2] = FAR, F(0.0), F(0.0)
    at = 0
    for run in range(runs.shape[0]):
        shift = runs[run, 0] - at
        stop = min(at + runs[run, 1], keys)
        key = sizes[0].ctypes.data
        value = sizes[1].ctypes.data
        mark = marks.ctypes.data
        low, high = max(at, first), min(length, stop)
        if low < high:
            here = 4 * (low + shift)
            measure(row + 4 * low, high - low, step, key + here, value + here, 0, mark)
        low = max(at, length)
        if low < stop:
            here = 4 * (low + shift)
            measure_seen(
                row + 4 * low, stop - low, step, key + here, value + here, seen + low - length, mark
            )
        at = stop


@compiled
def softmax_terms(
    row: Any, step: Any, sizes: Any, runs: Any, length: int, first: int, seen: Any, marks: Any
) -> Any:
    """Softmax terms of products [keys], which `divide` multiplies by marks[1].

    As `attention.softmax_row`; returns the factor of the weighted sums.
    """
    keys = row.shape[0]
    start = row.ctypes.data
    for j in range(min(first, length)):
        row[j] = FAR
    scale_products(start, step, sizes, runs, keys, length, first, seen.ctypes.data, marks)
    total = decay(start, keys, marks[0])
    if marks[1] == F(0.0):
        return F(0.0)
    mass = F(total) / F(UNIT)
    # so that all weights add up exactly
    part = F(EXACT // VALUE_LEVELS - 1 - int(marks[2])) / (mass * marks[1])
    marks[1] = part
    return F(1.0) / (part * mass)


@compiled
def divide(row: Any, sizes: Any, runs: Any, part: Any, values: Any, shares: Any, sums: Any) -> None:
    """Round weights of a row to int16 shares [keys]; overflow goes to sums [strips, width]."""
    keys = row.shape[0]
    start = row.ctypes.data
    there = shares.ctypes.data
    at = 0
    for run in range(runs.shape[0]):
        first = runs[run, 0]
        stop = min(at + runs[run, 1], keys)
        found = portion(
            start + 4 * at, stop - at, sizes[1].ctypes.data + 4 * first, part, there + 2 * at
        )
        if found:
            add_overflow(row[at:stop], sizes[1, first:], part, values[first:], found, sums)
        at = stop


@compiled
def add_overflow(row: Any, sizes: Any, part: Any, values: Any, found: int, sums: Any) -> None:
    """Add values times the overflow of their weights; `found` is the result of `portion`."""
    many = found // FOUND
    last = found % FOUND
    strips, width = sums.shape
    for j in range(last if many == 1 else 0, last + 1):
        more = np.rint(row[j] * (sizes[j, 0] * part)) - F(SHORT)
        if more > F(0.0):
            for strip in range(strips):
                for i in range(width):
                    sums[strip, i] += more * F(values[j, strip * width + i])


@compiled
def multiply(queries: Any, keys: Any, runs: Any, products: Any, count: int) -> None:
    """Products of queries [group, width] and the first `count` keys of a text, in runs of slots."""
    group, width = queries.shape
    at = 0
    start = keys.ctypes.data
    apart = products.shape[1]
    for run in range(runs.shape[0]):
        first = runs[run, 0]
        here = min(runs[run, 1], count - at)
        out = products.ctypes.data + 4 * at
        if width == 64:
            products_64(queries.ctypes.data, group, start + 128 * first, here, out, apart)
        elif width == 128:
            products_128(queries.ctypes.data, group, start + 256 * first, here, out, apart)
        else:
            for g in range(group):
                multiply_run(queries[g], keys[first : first + here], products[g, at : at + here])
        at += here


@compiled
def gather_group(
    shares: int, apart: int, values: int, size: int, count: int, out: int, group: int
) -> None:
    """Weighted sums of values for the heads of a group; all by address."""
    for done in range(0, group, HEADS):
        here = shares + 2 * apart * done
        there = out + 4 * STRIP * done
        int_sums(group - done, here, apart, values, size, count, there)


@compiled
def gather(shares: Any, values: Any, runs: Any, sums: Any, count: int) -> None:
    """Add shares [group, keys] times the first `count` values: sums [strips, group, STRIP]."""
    strips, group, width = sums.shape
    size = 2 * values.shape[1]
    apart = shares.shape[1]
    at = 0
    for run in range(runs.shape[0]):
        first = runs[run, 0]
        here = min(runs[run, 1], count - at)
        for strip in range(strips):
            if width == STRIP:
                start = values.ctypes.data + size * first + 2 * STRIP * strip
                gather_group(
                    shares.ctypes.data + 2 * at,
                    apart,
                    start,
                    size,
                    here,
                    sums[strip].ctypes.data,
                    group,
                )
            else:
                for g in range(group):
                    gather_run(
                        shares[g, at : at + here], values[first : first + here], sums[strip, g]
                    )
        at += here


@inlined
def read_group(
    net: Any,
    sessions: Any,
    work: Any,
    held: Any,
    piece: Any,
    layer: int,
    r: int,
    k: int,
    worker: int,
) -> None:
    """Attention of one row for the heads that share keys and values."""
    planes, sizes = held
    group = work.weights.shape[1]
    sight = net.sights[layer]
    place = r - piece[FIRST]
    # visible nodes come before the row
    nodes = piece[SINCE] + place + 1
    most = piece[SINCE] + piece[COUNT]
    keys = piece[LENGTH] + nodes
    runs = sessions.runs[piece[RUN] : piece[RUN] + piece[RUNS]]
    weights = work.weights[worker]
    shares = work.shares[worker]
    sums = work.sums[worker]
    marks = work.marks[worker]
    multiply(work.queries[r, k * group : (k + 1) * group], planes[0, k], runs, weights, keys)
    seen = sessions.seen[sight, piece[SEEN] + place * most : piece[SEEN] + place * most + nodes]
    sums[:] = F(0.0)
    for g in range(group):
        step = work.steps[r, k * group + g]
        first = sessions.oldest[sight, r]
        marks[3 + g] = softmax_terms(
            weights[g, :keys], step, sizes[:, k], runs, piece[LENGTH], first, seen, marks
        )
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
    net: Any, sessions: Any, work: Any, layer: int, start: int, stop: int, worker: int
) -> None:
    """Attention of some rows and heads, session by session, grouped by shared keys."""
    heads = net.kv_heads
    for p in range(sessions.pieces.shape[0]):
        piece = sessions.pieces[p]
        held = memory(net, work, piece, layer)
        rows = piece[COUNT]
        begin = piece[FIRST] * heads
        for unit in range(max(start - begin, 0), min(stop - begin, rows * heads)):
            read_group(
                net,
                sessions,
                work,
                held,
                piece,
                layer,
                piece[FIRST] + unit % rows,
                unit // rows,
                worker,
            )
