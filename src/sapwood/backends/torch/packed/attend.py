"""Attention of a whole pass, split among workers: rows are spread out to heads, and heads read."""

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from sapwood.backends.torch.packed.attention import gather_run, multiply_run, normed
from sapwood.backends.torch.packed.gathering import gather_1, gather_2, gather_3, gather_4
from sapwood.backends.torch.packed.kernels import EXACT, FAR, UNIT, VALUE_LEVELS, F, compiled, inlined
from sapwood.backends.torch.packed.machine import floats_at, shorts_at
from sapwood.backends.torch.packed.plan import COUNT, FIRST, LENGTH, PLANES, RUN, RUNS, SEEN, SINCE, SIZES, SLOTS
from sapwood.backends.torch.packed.reading import (
    FOUND,
    SHORT,
    STRIP,
    decay,
    measure,
    measure_seen,
    portion,
    products_64,
    products_128,
)
from sapwood.backends.torch.packed.vectors import peak, round_to, turn


@inlined
def memory(net: Any, work: Any, piece: Any, layer: int) -> Any:
    """Keys and values of a layer, [2, kv heads, slots, head width], and the sizes of their steps."""
    width, slots = work.queries.shape[2], piece[SLOTS]
    heads = 2 * net.kv_heads * slots * layer  # of the layers before
    planes = carray(shorts_at(piece[PLANES] + 2 * heads * width), (2, net.kv_heads, slots, width))
    return planes, carray(floats_at(piece[SIZES] + 4 * heads), (2, net.kv_heads, slots, 1))


@compiled
def whole(row: Any, most: int, out: int) -> Any:
    """As `attention.whole`: row in whole numbers up to `most` to int16 at an address; the size of a step."""
    count = row.shape[0]
    largest = peak(row.ctypes.data, count)
    if largest == F(0.0):
        round_to(row.ctypes.data, count, F(0.0), out)
        return F(0.0)
    round_to(row.ctypes.data, count, F(most) / largest, out)
    return largest / F(most)


@inlined
def spread_head(net: Any, crowd: Any, work: Any, held: Any, layer: int, r: int, h: int, spare: Any) -> None:
    """A query, key or value of a row, rotated and in whole numbers; keys and values go to their slot."""
    planes, sizes = held
    heads, width = work.queries.shape[1], work.queries.shape[2]
    slot, head, scale = crowd.slots[r], spare[0], work.scales[r]
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
    half, turns, turned = width // 2, crowd.turns, spare[1]
    turn(head.ctypes.data, turns[0, r].ctypes.data, turns[1, r].ctypes.data, half, turned.ctypes.data)
    if h < heads:
        work.steps[r, h] = whole(turned, net.levels, work.queries[r, h].ctypes.data) * net.scale
    else:
        sizes[0, h - heads, slot, 0] = whole(turned, net.levels, planes[0, h - heads, slot].ctypes.data)


@inlined
def spread(net: Any, crowd: Any, work: Any, layer: int, start: int, stop: int, worker: int) -> None:
    """Some of the heads of all rows, row by row."""
    heads = work.queries.shape[1] + 2 * net.kv_heads
    for p in range(crowd.pieces.shape[0]):
        piece = crowd.pieces[p]
        held = memory(net, work, piece, layer)
        first, last = piece[FIRST] * heads, (piece[FIRST] + piece[COUNT]) * heads
        for unit in range(max(start, first), min(stop, last)):
            spread_head(net, crowd, work, held, layer, unit // heads, unit % heads, work.spare[worker])


@compiled
def look(row: int, step: Any, sizes: Any, runs: Any, keys: int, length: int, first: int, seen: int, marks: Any) -> None:
    """Products, at address `row`, get their size; marks <- the largest, the widest step of values, keys seen."""
    marks[0], marks[1], marks[2] = FAR, F(0.0), F(0.0)
    at = 0
    for run in range(runs.shape[0]):
        shift, stop = runs[run, 0] - at, min(at + runs[run, 1], keys)
        key, value, mark = sizes[0].ctypes.data, sizes[1].ctypes.data, marks.ctypes.data
        low, high = max(at, first), min(length, stop)
        if low < high:
            here = 4 * (low + shift)
            measure(row + 4 * low, high - low, step, key + here, value + here, 0, mark)
        low = max(at, length)
        if low < stop:
            here = 4 * (low + shift)
            measure_seen(row + 4 * low, stop - low, step, key + here, value + here, seen + low - length, mark)
        at = stop


@compiled
def weigh(row: Any, step: Any, sizes: Any, runs: Any, length: int, first: int, seen: Any, marks: Any) -> Any:
    """As `attention.weigh_row`: from products [keys] to terms that marks[1] makes weights of, for `divide`.

    Returns what turns the sums of weighted values into the row's result.
    """
    keys, start = row.shape[0], row.ctypes.data
    for j in range(min(first, length)):
        row[j] = FAR
    look(start, step, sizes, runs, keys, length, first, seen.ctypes.data, marks)
    total = decay(start, keys, marks[0])
    if marks[1] == F(0.0):
        return F(0.0)
    mass = F(total) / F(UNIT)
    part = F(EXACT // VALUE_LEVELS - 1 - int(marks[2])) / (mass * marks[1])  # so that all weights add up exactly
    marks[1] = part
    return F(1.0) / (part * mass)


@compiled
def divide(row: Any, sizes: Any, runs: Any, part: Any, values: Any, shares: Any, sums: Any) -> None:
    """Shares [keys] <- the weights of a row; what does not fit in them goes into its sums, [strips, width] in all."""
    keys, start, there = row.shape[0], row.ctypes.data, shares.ctypes.data
    at = 0
    for run in range(runs.shape[0]):
        first, stop = runs[run, 0], min(at + runs[run, 1], keys)
        found = portion(start + 4 * at, stop - at, sizes[1].ctypes.data + 4 * first, part, there + 2 * at)
        if found:
            spill(row[at:stop], sizes[1, first:], part, values[first:], found, sums)
        at = stop


@compiled
def spill(row: Any, sizes: Any, part: Any, values: Any, found: int, sums: Any) -> None:
    """Add values times what their weights have more than a share; `found` is what `portion` says of them."""
    many, last = found // FOUND, found % FOUND
    strips, width = sums.shape
    for j in range(last if many == 1 else 0, last + 1):
        more = np.rint(row[j] * (sizes[j, 0] * part)) - F(SHORT)
        if more > F(0.0):
            for strip in range(strips):
                for i in range(width):
                    sums[strip, i] += more * F(values[j, strip * width + i])


@compiled
def multiply(queries: Any, keys: Any, runs: Any, products: Any, count: int) -> None:
    """Queries [group, width] times the first `count` keys of a text, which lie in runs of [slots, width]."""
    group, width = queries.shape
    at, start, apart = 0, keys.ctypes.data, products.shape[1]
    for run in range(runs.shape[0]):
        first, here = runs[run, 0], min(runs[run, 1], count - at)
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
def gather_group(shares: int, apart: int, values: int, size: int, count: int, out: int, group: int) -> None:
    """Sums of values for all heads that read them; all by address."""
    done = 0
    while done < group:
        here, there, left = shares + 2 * apart * done, out + 4 * STRIP * done, group - done
        if left >= 4:
            gather_4(here, apart, values, size, count, there)
        elif left == 3:
            gather_3(here, apart, values, size, count, there)
        elif left == 2:
            gather_2(here, apart, values, size, count, there)
        else:
            gather_1(here, apart, values, size, count, there)
        done += min(left, 4)


@compiled
def gather(shares: Any, values: Any, runs: Any, sums: Any, count: int) -> None:
    """Add shares [group, keys] times the first `count` values of a text: sums [strips, group, numbers of a strip]."""
    strips, group, width = sums.shape
    size, apart = 2 * values.shape[1], shares.shape[1]
    at = 0
    for run in range(runs.shape[0]):
        first, here = runs[run, 0], min(runs[run, 1], count - at)
        for strip in range(strips):
            if width == STRIP:
                start = values.ctypes.data + size * first + 2 * STRIP * strip
                gather_group(shares.ctypes.data + 2 * at, apart, start, size, here, sums[strip].ctypes.data, group)
            else:
                for g in range(group):
                    gather_run(shares[g, at : at + here], values[first : first + here], sums[strip, g])
        at += here


@inlined
def read_group(net: Any, crowd: Any, work: Any, held: Any, piece: Any, layer: int, r: int, k: int, worker: int) -> None:
    """What the heads of a row read that share keys and values."""
    planes, sizes = held
    group = work.weights.shape[1]
    sight, place = net.sights[layer], r - piece[FIRST]
    nodes, most = piece[SINCE] + place + 1, piece[SINCE] + piece[COUNT]  # those that it may see come before it
    keys, runs = piece[LENGTH] + nodes, crowd.runs[piece[RUN] : piece[RUN] + piece[RUNS]]
    weights, shares, sums, marks = work.weights[worker], work.shares[worker], work.sums[worker], work.marks[worker]
    multiply(work.queries[r, k * group : (k + 1) * group], planes[0, k], runs, weights, keys)
    seen = crowd.seen[sight, piece[SEEN] + place * most : piece[SEEN] + place * most + nodes]
    sums[:] = F(0.0)
    for g in range(group):
        step, first = work.steps[r, k * group + g], crowd.oldest[sight, r]
        marks[3 + g] = weigh(weights[g, :keys], step, sizes[:, k], runs, piece[LENGTH], first, seen, marks)
        divide(weights[g, :keys], sizes[:, k], runs, marks[1], planes[1, k], shares[g], sums[:, g])
    gather(shares, planes[1, k], runs, sums, keys)
    strips, _, width = sums.shape
    for g in range(group):
        for strip in range(strips):
            start = ((k * group + g) * strips + strip) * width
            for i in range(width):
                work.entered[r, start + i] = sums[strip, g, i] * marks[3 + g]


@inlined
def read(net: Any, crowd: Any, work: Any, layer: int, start: int, stop: int, worker: int) -> None:
    """What some of the heads read, piece by piece, those that share keys and values one after the other."""
    heads = net.kv_heads
    for p in range(crowd.pieces.shape[0]):
        piece = crowd.pieces[p]
        held, rows = memory(net, work, piece, layer), piece[COUNT]
        begin = piece[FIRST] * heads
        for unit in range(max(start - begin, 0), min(stop - begin, rows * heads)):
            read_group(net, crowd, work, held, piece, layer, piece[FIRST] + unit % rows, unit // rows, worker)
