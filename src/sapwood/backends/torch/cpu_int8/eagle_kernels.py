"""Compiled steps of an int8 EAGLE-3 head.

Keys and values are the drafter's, in float32. Rounding of drafts does not matter, so sums here have
no fixed order.
"""

from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.int8_gemm import multiply, put
from sapwood.backends.torch.cpu_int8.int_attention import (
    HEADS,
    STRIP,
    decay,
    float_products_64,
    float_products_128,
    float_sums,
)
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP
from sapwood.backends.torch.cpu_int8.pass_args import BLOCKS, DEPTH
from sapwood.backends.torch.cpu_int8.pointwise import (
    FAR,
    UNIT,
    F,
    compiled,
    level,
    open_gate,
    reordered,
    shrink,
)
from sapwood.backends.torch.cpu_int8.simd import largest_of, turn
from sapwood.backends.torch.cpu_int8.thread_team import COUNTERS, finish, share, take, wait

STRETCH = 256  # logits that are skipped together if their largest is too small


@compiled
def layer_of(place: Any, rows: Any, scales: Any) -> Any:
    """Int8 linear layer of rows [rows, inputs], scaled in place: [rows, padded outputs]."""
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
    """Queries, keys and values of embeddings and states, with rotary embedding."""
    rows, width = embeds.shape
    joined = np.empty((rows, 2 * width), np.float32)
    scales = np.ones(rows, np.float32)
    for r in range(rows):
        first = level(embeds[r], eps)
        second = level(states[r], eps)
        for i in range(width):
            joined[r, i] = embeds[r, i] * norms[0, i] * first
            joined[r, width + i] = states[r, i] * norms[1, i] * second
    turn_rows(layer_of(place, joined, scales), scales, turns, query, key, value)


@compiled
def turn_rows(products: Any, scales: Any, turns: Any, query: Any, key: Any, value: Any) -> None:
    """Split qkv outputs [rows, all heads * d] into rotated heads; see `project`."""
    heads = query.shape[1]
    kv_heads = key.shape[0]
    d = query.shape[2]
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
def gather(
    weights: int, apart: int, values: int, size: int, count: int, out: int, group: int
) -> None:
    """Weighted sums of values for the heads of a group; all by address."""
    for done in range(0, group, HEADS):
        here = weights + 4 * apart * done
        there = out + 4 * STRIP * done
        float_sums(group - done, here, apart, values, size, count, there)


@compiled
def softmax_terms(row: Any, scale: Any, seen: Any) -> Any:
    """Softmax terms of products [keys], the last of them masked; the reciprocal of their sum."""
    keys = row.shape[0]
    known = row.shape[0] - seen.shape[0]
    for j in range(keys):
        row[j] *= scale
    for j in range(seen.shape[0]):
        row[known + j] = row[known + j] if seen[j] else FAR
    start = row.ctypes.data
    return F(UNIT) / F(decay(start, keys, largest_of(start, keys)))


@compiled
def read_heads(
    query: Any, keys: int, values: int, count: int, seen: Any, weights: Any, sums: Any, out: Any
) -> None:
    """Attention of one row for a group of heads: queries [heads, d], out [heads * d].

    The first `count` keys and values, [slots, d] by address, are read; `seen` [n] masks the last n.
    """
    group, d = query.shape
    strips = d // STRIP
    size = 4 * d
    apart = weights.shape[1]
    if d == STRIP:
        float_products_64(query.ctypes.data, group, keys, count, weights.ctypes.data, apart)
    else:
        float_products_128(query.ctypes.data, group, keys, count, weights.ctypes.data, apart)
    for g in range(group):
        # stored here until it is used
        out[g * d] = softmax_terms(weights[g, :count], F(1.0) / np.sqrt(F(d)), seen)
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
def attend(
    query: Any, keys: int, values: int, slots: int, count: int, kv_heads: int, mask: Any, place: Any
) -> Any:
    """Attention over the first `count` keys and the output projection: [rows, padded outputs].

    Queries are [rows, heads, d], keys and values [kv heads, slots, d] by address; a mask is [rows,
    last keys].
    """
    rows, heads, d = query.shape
    group = heads // kv_heads
    found = np.empty((rows, heads * d), np.float32)
    weights = np.empty((group, count + BLOCK), np.float32)
    sums = np.empty((d // STRIP, group, STRIP), np.float32)
    size = group * d
    for r in range(rows):
        for k in range(kv_heads):
            start = 4 * k * slots * d
            near = query[r, k * group : (k + 1) * group]
            out = found[r, k * size : (k + 1) * size]
            read_heads(near, keys + start, values + start, count, mask[r], weights, sums, out)
    scales = np.ones(rows, np.float32)
    out = layer_of(place, found, scales)
    for r in range(rows):
        for i in range(out.shape[1]):
            out[r, i] *= scales[r]
    return out


@compiled
def add_mlp(x: Any, norm: Any, eps: Any, gate_up: Any, down: Any, inner: int) -> None:
    """Add the MLP's output to rows x [rows, width] in place."""
    rows, width = x.shape
    entered = np.empty((rows, width), np.float32)
    scales = np.empty(rows, np.float32)
    for r in range(rows):
        scales[r] = level(x[r], eps)
        for i in range(width):
            entered[r, i] = x[r, i] * norm[i]
    products = layer_of(gate_up, entered, scales)
    gated = np.empty((rows, inner), np.float32)
    bits = np.empty(inner, np.int32)
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
    """The best tokens of a row of logits [vocab], ties by lowest id, and their probs."""
    count = ids.shape[0]
    found = 0
    for start in range(0, row.shape[0], STRETCH):
        part = row[start : start + STRETCH]
        if found == count and largest_of(part.ctypes.data, part.shape[0]) <= chances[found - 1]:
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
def draft_logits(
    rows: Any, norm: Any, eps: Any, place: Any, whole: Any, scales: Any, logits: Any, vocab: int,
    ids: Any, chances: Any, counters: Any, worker: int, workers: int,
) -> int:  # fmt: skip
    """Run one worker's share of the logits of rows [rows, width], and of their top tokens."""
    count = rows.shape[0]
    counter = counters.ctypes.data
    yields = 0
    entered = np.empty(rows.shape[1], np.float32)
    for stage in range(3 if ids.shape[1] else 2):
        units = place[BLOCKS] if stage == 1 else count
        items = min(units, 8 * workers if stage == 1 else workers)
        item = take(counter, items, worker)
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
            finish(counter)
            item = take(counter, items, worker)
        yields += wait(counter, items)
        counter += 8 * COUNTERS
    return yields
