"""The compiled parts of a packed EAGLE-3 head: rows in, rows out, nothing of Python between the products.

Keys and values are the drafter's, in float32. A draft may be rounded in any way, so sums here have no
fixed order.
"""

from typing import Any

import numpy as np

from sapwood.backends.torch.packed.kernels import FAR, UNIT, F, compiled, level, open_gate, reordered, shrink
from sapwood.backends.torch.packed.machine import BLOCK, DEEP
from sapwood.backends.torch.packed.plan import BLOCKS, DEPTH
from sapwood.backends.torch.packed.reading import (
    STRIP,
    broken_1,
    broken_2,
    broken_3,
    broken_4,
    broken_64,
    broken_128,
    decay,
)
from sapwood.backends.torch.packed.stream import multiply, put
from sapwood.backends.torch.packed.team import DESK, finish, share, take, wait
from sapwood.backends.torch.packed.vectors import summit, turn

STRETCH = 256  # logits whose largest is looked at before each of them


@compiled
def layer_of(place: Any, rows: Any, scales: Any) -> Any:
    """Rows [rows, inputs], which are scaled in place, times a packed matrix: [rows, outputs and padding]."""
    count = rows.shape[0]
    whole = np.zeros((count, place[DEPTH] * DEEP), np.uint8)
    for r in range(count):
        scales[r] *= shrink(rows[r], rows[r])
        put(rows[r], whole[r : r + 1])
    out = np.empty((count, place[BLOCKS] * BLOCK), np.float32)
    multiply(place, whole, count, 0, place[BLOCKS], out)
    return out


@compiled
def project(
    embeds: Any,  # [rows, width]
    states: Any,
    norms: Any,  # [2, width]
    eps: Any,
    place: Any,
    turns: Any,  # [2, rows, d / 2], cosines and sines
    query: Any,  # [rows, heads, d], out
    key: Any,  # [kv heads, rows, d], out
    value: Any,
) -> None:
    """Queries, keys and values of embeddings and states, the first two rotated."""
    rows, width = embeds.shape
    joined, scales = np.empty((rows, 2 * width), np.float32), np.ones(rows, np.float32)
    for r in range(rows):
        first, second = level(embeds[r], eps), level(states[r], eps)
        for i in range(width):
            joined[r, i] = embeds[r, i] * norms[0, i] * first
            joined[r, width + i] = states[r, i] * norms[1, i] * second
    turn_rows(layer_of(place, joined, scales), scales, turns, query, key, value)


@compiled
def turn_rows(products: Any, scales: Any, turns: Any, query: Any, key: Any, value: Any) -> None:
    """See `project`: from products [rows, all heads * d] to heads."""
    heads, kv_heads, d = query.shape[1], key.shape[0], query.shape[2]
    for r in range(products.shape[0]):
        cos, sin = turns[0, r].ctypes.data, turns[1, r].ctypes.data
        for h in range(heads + 2 * kv_heads):
            head = products[r, h * d : (h + 1) * d]
            for i in range(d):
                head[i] *= scales[r]
            if h < heads:
                turn(head.ctypes.data, cos, sin, d // 2, query[r, h].ctypes.data)
            elif h < heads + kv_heads:
                turn(head.ctypes.data, cos, sin, d // 2, key[h - heads, r].ctypes.data)
            else:
                value[h - heads - kv_heads, r] = head


# --------------------------------------------------------------------------------------- attention
@compiled
def gather(weights: int, apart: int, values: int, size: int, count: int, out: int, group: int) -> None:
    """Sums of values for all heads that share them; all by address."""
    done = 0
    while done < group:
        here, there, left = weights + 4 * apart * done, out + 4 * STRIP * done, group - done
        if left >= 4:
            broken_4(here, apart, values, size, count, there)
        elif left == 3:
            broken_3(here, apart, values, size, count, there)
        elif left == 2:
            broken_2(here, apart, values, size, count, there)
        else:
            broken_1(here, apart, values, size, count, there)
        done += min(left, 4)


@compiled
def soften(row: Any, scale: Any, seen: Any) -> Any:
    """Products [keys] to weights, of which the last ones have a mask; one over their sum."""
    keys, known = row.shape[0], row.shape[0] - seen.shape[0]
    for j in range(keys):
        row[j] *= scale
    for j in range(seen.shape[0]):
        row[known + j] = row[known + j] if seen[j] else FAR
    start = row.ctypes.data
    return F(UNIT) / F(decay(start, keys, summit(start, keys)))


@compiled
def read_heads(query: Any, keys: int, values: int, count: int, seen: Any, weights: Any, sums: Any, out: Any) -> None:
    """What the heads that share keys read of the first `count`, for one row: queries [heads, d], out [heads * d].

    Keys and values are [slots, d] by address; `seen` [n] is for the last n keys, and all others are seen.
    """
    group, d = query.shape
    strips, size, apart = d // STRIP, 4 * d, weights.shape[1]
    if d == STRIP:
        broken_64(query.ctypes.data, group, keys, count, weights.ctypes.data, apart)
    else:
        broken_128(query.ctypes.data, group, keys, count, weights.ctypes.data, apart)
    for g in range(group):
        out[g * d] = soften(weights[g, :count], F(1.0) / np.sqrt(F(d)), seen)  # kept here until it is used
    sums[:] = F(0.0)
    for strip in range(strips):
        first = values + 4 * STRIP * strip
        gather(weights.ctypes.data, apart, first, size, count, sums[strip].ctypes.data, group)
    for g in range(group):
        share = out[g * d]
        for strip in range(strips):
            for i in range(STRIP):
                out[g * d + strip * STRIP + i] = sums[strip, g, i] * share


@compiled
def attend(query: Any, keys: int, values: int, slots: int, count: int, kv_heads: int, mask: Any, place: Any) -> Any:
    """What rows read of the first `count` keys, through the output projection: [rows, outputs and padding].

    Queries are [rows, heads, d], keys and values [kv heads, slots, d] by address; a mask is [rows, last keys].
    """
    rows, heads, d = query.shape
    group = heads // kv_heads
    found, weights = np.empty((rows, heads * d), np.float32), np.empty((group, count + BLOCK), np.float32)
    sums, size = np.empty((d // STRIP, group, STRIP), np.float32), group * d
    for r in range(rows):
        for k in range(kv_heads):
            start, near = 4 * k * slots * d, query[r, k * group : (k + 1) * group]
            out = found[r, k * size : (k + 1) * size]
            read_heads(near, keys + start, values + start, count, mask[r], weights, sums, out)
    scales = np.ones(rows, np.float32)
    out = layer_of(place, found, scales)
    for r in range(rows):
        for i in range(out.shape[1]):
            out[r, i] *= scales[r]
    return out


@compiled
def think(x: Any, norm: Any, eps: Any, gate_up: Any, down: Any, inner: int) -> None:
    """Add the MLP's answer to rows x [rows, width] in place."""
    rows, width = x.shape
    entered, scales = np.empty((rows, width), np.float32), np.empty(rows, np.float32)
    for r in range(rows):
        scales[r] = level(x[r], eps)
        for i in range(width):
            entered[r, i] = x[r, i] * norm[i]
    products = layer_of(gate_up, entered, scales)
    gated, bits = np.empty((rows, inner), np.float32), np.empty(inner, np.int32)
    for r in range(rows):
        open_gate(products[r, :inner], products[r, inner : 2 * inner], scales[r], gated[r], bits)
        scales[r] = F(1.0)
    products = layer_of(down, gated, scales)
    for r in range(rows):
        for i in range(width):
            x[r, i] += products[r, i] * scales[r]


# ----------------------------------------------------------------------------------------- choices
@reordered
def add_all(row: Any) -> Any:
    """The sum of a row."""
    total = F(0.0)
    for i in range(row.shape[0]):
        total += row[i]
    return total


@compiled
def choose(row: Any, scratch: Any, ids: Any, chances: Any) -> None:
    """The best of a row of logits [vocab], best first and of equals the lowest first, and their probabilities."""
    count, found = ids.shape[0], 0
    for start in range(0, row.shape[0], STRETCH):
        part = row[start : start + STRETCH]
        if found == count and summit(part.ctypes.data, part.shape[0]) <= chances[found - 1]:
            continue
        for i in range(part.shape[0]):
            if found < count or part[i] > chances[found - 1]:
                found = min(found + 1, count)
                place = found - 1
                while place and part[i] > chances[place - 1]:
                    ids[place], chances[place] = ids[place - 1], chances[place - 1]
                    place -= 1
                ids[place], chances[place] = start + i, part[i]
    scratch[:] = row
    top = F(chances[0])
    decay(scratch.ctypes.data, row.shape[0], top)
    mass = add_all(scratch)
    for i in range(count):
        chances[i] = np.exp(chances[i] - top) / mass


@compiled
def speak(
    rows: Any, norm: Any, eps: Any, place: Any, whole: Any, scales: Any, logits: Any, vocab: int,
    ids: Any, chances: Any, desks: Any, worker: int, workers: int,
) -> int:  # fmt: skip
    """One worker's share of the logits of rows [rows, width], and of the choice among them where ids are wanted."""
    count, desk, vain = rows.shape[0], desks.ctypes.data, 0
    entered = np.empty(rows.shape[1], np.float32)
    for stage in range(3 if ids.shape[1] else 2):
        units = place[BLOCKS] if stage == 1 else count
        items = min(units, 8 * workers if stage == 1 else workers)
        item = take(desk, items, worker)
        while item < items:
            start, stop = share(units, item, items)
            if stage == 0:
                for r in range(start, stop):
                    for i in range(rows.shape[1]):
                        entered[i] = rows[r, i] * norm[i]
                    scales[r] = level(rows[r], eps) * shrink(entered, entered)
                    put(entered, whole[r : r + 1])
            elif stage == 1:
                multiply(place, whole, count, start, stop, logits)
                for r in range(count):
                    for i in range(start * BLOCK, stop * BLOCK):
                        logits[r, i] *= scales[r]
            else:
                scratch = np.empty(vocab, np.float32)
                for r in range(start, stop):
                    choose(logits[r, :vocab], scratch, ids[r], chances[r])
            finish(desk)
            item = take(desk, items, worker)
        vain += wait(desk, items)
        desk += 8 * DESK
    return vain
