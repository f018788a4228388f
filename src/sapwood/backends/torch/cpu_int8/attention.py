"""Attention with exact integer sums, so that results do not depend on the batch.

Queries, keys and values are rounded to integers, each head of each token by its own largest
magnitude; products and their partial sums then stay below 2^24 and any matrix kernel gives the same
bits, with any number of rows, keys or threads, wherever a key's slot lies. The weights of the
values are rounded to 1/2^16 of the row's total, finer than int8 layers resolve. The keys of a text
lie in runs of slots, [runs, 2]: the first slot and the length of each run.
"""

from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.pointwise import (
    EXACT,
    FAR,
    UNIT,
    VALUE_LEVELS,
    F,
    compiled,
    exponential,
    exponentiate,
    level,
    reordered,
    shrink,
    soft_cap,
)
from sapwood.backends.torch.cpu_int8.simd import peak

MOST_ABOVE = 60.0  # most that a sink's logit may exceed the largest product: exp could overflow


def levels(width: int) -> int:
    """Largest integer for queries and keys of this width whose dot products are exact."""
    return int(np.sqrt((EXACT - 1) / width))


@compiled
def whole(row: Any, most: int, out: Any) -> Any:
    """Round a row to integers up to `most`; returns the quantisation step."""
    largest = peak(row.ctypes.data, row.shape[0])
    if largest == F(0.0):
        for i in range(row.shape[0]):
            out[i] = F(0.0)
        return F(0.0)
    back = F(most) / largest
    for i in range(row.shape[0]):
        out[i] = np.rint(row[i] * back)
    return largest / F(most)


@compiled
def turn(row: Any, cos: Any, sin: Any, out: Any) -> None:
    """Rotary embedding of one head, [width], with cosines and sines [width / 2]."""
    half = cos.shape[0]
    for i in range(half):
        left, right = row[i], row[half + i]
        out[i] = left * cos[i] - right * sin[i]
        out[half + i] = right * cos[i] + left * sin[i]


@compiled
def normed(row: Any, norm: Any, eps: Any) -> None:
    """Norm one head in place, if the model norms heads."""
    if norm.shape[0]:
        rate = level(row, eps)
        for i in range(row.shape[0]):
            row[i] *= norm[i] * rate


@compiled
def spread(
    y: Any,  # [rows, (heads + 2 * kv heads) * width], outputs of the qkv layer
    factors: Any,  # [rows], their scales
    bias: Any,  # [outputs], or empty
    norms: Any,  # of queries and keys, [2, width], or empty
    eps: Any,
    cos: Any,  # [rows, width / 2]
    sin: Any,
    slots: Any,  # [rows] int64, slot of each row
    queries: Any,  # [kv heads, rows * group, width] of integers, out
    steps: Any,  # [kv heads, rows * group] quantisation steps times the scale of attention, out
    scale: Any,
    planes: Any,  # [2, kv heads, slots, width] keys and values of this layer, integers
    sizes: Any,  # [2, kv heads, slots, 1] their quantisation steps
    most: int,  # levels of queries and keys
) -> None:
    """Split qkv outputs into heads: queries, and keys and values in their slots, as integers."""
    kv_heads = planes.shape[1]
    width = planes.shape[3]
    rows = y.shape[0]
    heads = queries.shape[1] // y.shape[0] * kv_heads
    group = heads // kv_heads
    head = np.empty(width, np.float32)
    turned = np.empty(width, np.float32)
    for r in range(rows):
        for h in range(heads + 2 * kv_heads):
            for i in range(width):
                head[i] = y[r, h * width + i] * factors[r]
            if bias.shape[0]:
                for i in range(width):
                    head[i] += bias[h * width + i]
            if h < heads:
                normed(head, norms[0], eps)
                turn(head, cos[r], sin[r], turned)
                place = r * group + h % group
                steps[h // group, place] = whole(turned, most, queries[h // group, place]) * scale
            elif h < heads + kv_heads:
                k = h - heads
                normed(head, norms[1], eps)
                turn(head, cos[r], sin[r], turned)
                sizes[0, k, slots[r], 0] = whole(turned, most, planes[0, k, slots[r]])
            else:
                k = h - heads - kv_heads
                sizes[1, k, slots[r], 0] = whole(head, VALUE_LEVELS, planes[1, k, slots[r]])


def align(planes: Any, runs: Any, out: Any) -> None:
    """Gather keys or values of a text from their slots: out [kv heads, keys, width]."""
    # not compiled: runs are few, and compilation would delay the first request that needs it
    place = 0
    for first, count in runs.tolist():
        out[:, place : place + count] = planes[:, first : first + count]
        place += count


@compiled
def size(row: Any, step: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """Scale products with keys, row [n]; returns the largest, and the largest step of values."""
    largest = FAR
    widest = F(0.0)
    for j in range(row.shape[0]):
        row[j] *= keys[j, 0] * step
        largest = max(largest, row[j])
        widest = max(widest, values[j, 0])
    return largest, widest


@compiled
def size_seen(row: Any, step: Any, keys: Any, values: Any, seen: Any) -> tuple[Any, Any, int]:
    """`size` of the visible keys alone; also returns their number."""
    largest = FAR
    widest = F(0.0)
    count = 0
    for j in range(row.shape[0]):
        if seen[j]:
            row[j] *= keys[j, 0] * step
            largest = max(largest, row[j])
            widest = max(widest, values[j, 0])
            count += 1
        else:
            row[j] = FAR
    return largest, widest, count


@compiled
def scale_products(
    row: Any, step: Any, sizes: Any, runs: Any, length: int, first: int, seen: Any
) -> tuple[Any, Any, int]:
    """Scale products; returns the largest, the largest step of values, and the visible keys."""
    largest = FAR
    widest = F(0.0)
    count = max(length - first, 0)
    at = 0
    row[:first] = FAR
    for run in range(runs.shape[0]):
        shift = runs[run, 0] - at
        stop = min(at + runs[run, 1], row.shape[0])
        low, high = max(at, first), min(length, stop)
        if low < high:
            here = slice(low + shift, high + shift)
            top, width = size(row[low:high], step, sizes[0, here], sizes[1, here])
            largest = max(largest, top)
            widest = max(widest, width)
        low = max(at, length)
        if low < stop:
            here = slice(low + shift, stop + shift)
            nodes = seen[low - length : stop - length]
            top, width, more = size_seen(row[low:stop], step, sizes[0, here], sizes[1, here], nodes)
            largest = max(largest, top)
            widest = max(widest, width)
            count = count + more
        at = stop
    return largest, widest, count


@compiled
def quantise_weights(row: Any, values: Any, share: Any) -> None:
    """Round weights of values, row [n], to integers, for steps of these sizes [n, 1]."""
    for j in range(row.shape[0]):
        row[j] = np.rint(row[j] * (values[j, 0] * share))


@compiled
def mass_with_sink(mass: Any, largest: Any, sink: Any) -> Any:
    """Sum of a softmax in units of its largest product, with the logit of a sink; FAR is none."""
    if sink == FAR:
        return mass
    # keys so far below the sink get no weight in any case
    return mass + exponential(min(sink - largest, F(MOST_ABOVE)))


@compiled
def softmax_row(
    row: Any,  # [keys] products of a query and keys, in; integer weights, out
    step: Any,
    sizes: Any,  # [2, slots, 1]
    runs: Any,
    length: int,
    first: int,  # first visible committed key
    seen: Any,  # [nodes] bool
    bits: Any,  # [keys] int32, scratch
    cap: Any,  # soft cap of the products; 0 for none
    sink: Any,  # logit that takes no value; FAR for none
) -> Any:
    """Softmax of one row as integer weights; the factor for the weighted sums."""
    keys = row.shape[0]
    largest, widest, count = scale_products(row, step, sizes, runs, length, first, seen)
    if cap > F(0.0):
        largest = soft_cap(row, cap, np.empty(keys, np.float32), bits)
    for j in range(keys):
        row[j] -= largest
    exponentiate(row, bits)
    total = np.int64(0)
    for j in range(keys):
        total += np.int64(np.int32(np.rint(row[j] * F(UNIT))))
    if widest == F(0.0):
        row[:] = F(0.0)
        return F(0.0)
    mass = F(total) / F(UNIT)
    # so that all weights add up exactly
    share = F(EXACT // VALUE_LEVELS - 1 - count) / (mass * widest)
    at = 0
    for run in range(runs.shape[0]):
        first = runs[run, 0]
        stop = min(at + runs[run, 1], keys)
        quantise_weights(row[at:stop], sizes[1, first : first + stop - at], share)
        at = stop
    return F(1.0) / (share * mass_with_sink(mass, largest, sink))


@compiled
def softmax_weights(
    # [kv heads, rows * group, keys] of queries and keys, in; integer weights, out
    products: Any,
    steps: Any,  # [kv heads, rows * group]
    sizes: Any,  # [2, kv heads, slots, 1]
    runs: Any,
    length: int,  # committed keys; the nodes of the tree follow
    oldest: Any,  # [rows] int64, first visible committed key
    seen: Any,  # [rows, nodes] bool, visible nodes
    # [kv heads, rows * group] factors of the weighted sums, out
    results: Any,
    bits: Any,  # [keys] int32, scratch
    cap: Any,
    sinks: Any,  # [heads], or empty
) -> None:
    """Softmax of all rows as integer weights."""
    kv_heads, places, _ = products.shape
    group = places // seen.shape[0]
    for k in range(kv_heads):
        for place in range(places):
            r = place // group
            row = products[k, place]
            sink = sinks[k * group + place % group] if sinks.shape[0] else FAR
            results[k, place] = softmax_row(
                row, steps[k, place], sizes[:, k], runs, length, oldest[r], seen[r], bits, cap, sink
            )


@compiled
def collect(sums: Any, results: Any, out: Any, scales: Any) -> None:
    """Attention outputs [rows, heads * width] of sums [kv heads, rows * group, width], scaled."""
    kv_heads, places, width = sums.shape
    rows = out.shape[0]
    group = places // rows
    for r in range(rows):
        for k in range(kv_heads):
            for g in range(group):
                place = r * group + g
                start = (k * group + g) * width
                for i in range(width):
                    out[r, start + i] = sums[k, place, i] * results[k, place]
        scales[r] = shrink(out[r], out[r])


# ---------------------------------------------------------------------------- products of few rows
@reordered
def multiply_run(query: Any, keys: Any, out: Any) -> None:
    """A query [width] times keys [n, width]: out [n]."""
    count = out.shape[0]
    for j in range(0, count - 3, 4):  # four keys at a time fill the FMA units
        a = F(0.0)
        b = F(0.0)
        c = F(0.0)
        d = F(0.0)
        for i in range(query.shape[0]):
            a += query[i] * keys[j, i]
            b += query[i] * keys[j + 1, i]
            c += query[i] * keys[j + 2, i]
            d += query[i] * keys[j + 3, i]
        out[j], out[j + 1], out[j + 2], out[j + 3] = a, b, c, d
    for j in range(count - count % 4, count):
        total = F(0.0)
        for i in range(query.shape[0]):
            total += query[i] * keys[j, i]
        out[j] = total


@reordered
def multiply(queries: Any, keys: Any, runs: Any, products: Any) -> None:
    """Products [kv heads, places, keys] of queries and keys [kv heads, slots, width]."""
    for k in range(queries.shape[0]):
        for place in range(queries.shape[1]):
            at = 0
            for run in range(runs.shape[0]):
                first = runs[run, 0]
                count = runs[run, 1]
                multiply_run(
                    queries[k, place],
                    keys[k, first : first + count],
                    products[k, place, at : at + count],
                )
                at += count


@reordered
def gather_run(weights: Any, values: Any, total: Any) -> None:
    """Add weights [n] times values [n, width] to a total [width]."""
    count = weights.shape[0]
    # four values at a time: the total is loaded and stored a quarter as often
    for j in range(0, count - 3, 4):
        a = weights[j]
        b = weights[j + 1]
        c = weights[j + 2]
        d = weights[j + 3]
        if a + b + c + d > F(0.0):
            for i in range(total.shape[0]):
                total[i] += (
                    a * values[j, i]
                    + b * values[j + 1, i]
                    + c * values[j + 2, i]
                    + d * values[j + 3, i]
                )
    for j in range(count - count % 4, count):
        for i in range(total.shape[0]):
            total[i] += weights[j] * values[j, i]


@reordered
def gather(weights: Any, values: Any, runs: Any, sums: Any) -> None:
    """Sums [kv heads, places, width] of weights times values [kv heads, slots, width]."""
    for k in range(weights.shape[0]):
        for place in range(weights.shape[1]):
            at = 0
            sums[k, place] = F(0.0)
            for run in range(runs.shape[0]):
                first = runs[run, 0]
                count = runs[run, 1]
                gather_run(
                    weights[k, place, at : at + count],
                    values[k, first : first + count],
                    sums[k, place],
                )
                at += count
