"""Attention whose sums over keys are exact, so that a row's result does not depend on how a pass is cut.

Queries, keys and values are rounded to whole numbers, each head of each token by its own largest
magnitude; products and their partial sums then stay below 2^24 and any matrix kernel gives the same
bits, with any number of rows, keys or threads, wherever a key's slot lies. The weights of the values are
rounded to shares of 1/2^16 of the row's total, finer than eight-bit layers can tell.
"""

from typing import Any

import numpy as np

from sapwood.backends.torch.packed.kernels import (
    EXACT,
    FAR,
    UNIT,
    VALUE_LEVELS,
    F,
    compiled,
    exponentiate,
    level,
    reordered,
    shrink,
)


def levels(width: int) -> int:
    """Whole numbers on each side of zero for queries and keys of this width: their products must add up exactly."""
    return int(np.sqrt((EXACT - 1) / width))


@compiled
def whole(row: Any, most: int, out: Any) -> Any:
    """Out <- row in whole numbers up to `most`; returns the size of a step."""
    largest = F(0.0)
    for i in range(row.shape[0]):
        largest = max(largest, abs(row[i]))
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
    """The rotary embedding of one head, [width], at a position's cosines and sines [width / 2]."""
    half = cos.shape[0]
    for i in range(half):
        left, right = row[i], row[half + i]
        out[i] = left * cos[i] - right * sin[i]
        out[half + i] = right * cos[i] + left * sin[i]


@compiled
def normed(row: Any, norm: Any, eps: Any) -> None:
    """Norm one head in place, where the model has a norm there."""
    if norm.shape[0]:
        rate = level(row, eps)
        for i in range(row.shape[0]):
            row[i] *= norm[i] * rate


@compiled
def spread(
    y: Any,  # [rows, (heads + 2 * kv heads) * width], products of the packed layer
    factors: Any,  # [rows], their scales
    bias: Any,  # [outputs], or empty
    norms: Any,  # of queries and keys, [2, width], or empty
    eps: Any,
    cos: Any,  # [rows, width / 2]
    sin: Any,
    start: int,  # slot of the first row
    queries: Any,  # [kv heads, rows * group, width] of whole numbers, out
    steps: Any,  # [kv heads, rows * group] size of their steps times the scale of attention, out
    scale: Any,
    planes: Any,  # [2, kv heads, slots, width] keys and values of this layer, in whole numbers
    sizes: Any,  # [2, kv heads, slots, 1] their steps
    most: int,  # levels of queries and keys
) -> None:
    """Queries of the rows, and their keys and values put into slots, all in whole numbers."""
    kv_heads, width = planes.shape[1], planes.shape[3]
    rows, heads = y.shape[0], queries.shape[1] // y.shape[0] * kv_heads
    group = heads // kv_heads
    head, turned = np.empty(width, np.float32), np.empty(width, np.float32)
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
                sizes[0, k, start + r, 0] = whole(turned, most, planes[0, k, start + r])
            else:
                k = h - heads - kv_heads
                sizes[1, k, start + r, 0] = whole(head, VALUE_LEVELS, planes[1, k, start + r])


@compiled
def weigh(
    products: Any,  # [kv heads, rows * group, keys] of queries and keys, in; weights in whole numbers, out
    steps: Any,  # [kv heads, rows * group]
    sizes: Any,  # [2, kv heads, slots, 1]
    length: int,  # committed keys; the nodes of the tree follow
    oldest: Any,  # [rows] int64, first committed key each row sees
    seen: Any,  # [rows, nodes] bool, which nodes each row sees
    results: Any,  # [kv heads, rows * group] what turns sums of weights times values into the row's result, out
    bits: Any,  # [keys] int32, scratch
    powers: Any,  # the same memory as float32
) -> None:
    """From products to the weights of the values."""
    kv_heads, places, keys = products.shape
    rows = seen.shape[0]
    group = places // rows
    for k in range(kv_heads):
        for place in range(places):
            r = place // group
            row, step, first = products[k, place], steps[k, place], oldest[r]
            largest, widest, count = FAR, F(0.0), length - first
            for j in range(first):
                row[j] = FAR
            for j in range(first, length):
                row[j] *= sizes[0, k, j, 0] * step
                largest = max(largest, row[j])
                widest = max(widest, sizes[1, k, j, 0])
            for j in range(length, keys):
                if seen[r, j - length]:
                    row[j] *= sizes[0, k, j, 0] * step
                    largest = max(largest, row[j])
                    widest = max(widest, sizes[1, k, j, 0])
                    count += 1
                else:
                    row[j] = FAR
            for j in range(keys):
                row[j] -= largest
            exponentiate(row, bits, powers)
            total = np.int64(0)
            for j in range(keys):
                total += np.int64(np.int32(np.rint(row[j] * F(UNIT))))
            if widest == F(0.0):
                row[:] = F(0.0)
                results[k, place] = F(0.0)
                continue
            mass = F(total) / F(UNIT)
            share = F(EXACT // VALUE_LEVELS - 1 - count) / (mass * widest)  # so that all weights add up exactly
            for j in range(keys):
                row[j] = np.rint(row[j] * (sizes[1, k, j, 0] * share))
            results[k, place] = F(1.0) / (share * mass)


@compiled
def collect(sums: Any, results: Any, out: Any, scales: Any) -> None:
    """What rows read, out [rows, heads * width], of sums [kv heads, rows * group, width]; scaled for a packed layer."""
    kv_heads, places, width = sums.shape
    rows = out.shape[0]
    group = places // rows
    for r in range(rows):
        for k in range(kv_heads):
            for g in range(group):
                place, start = r * group + g, (k * group + g) * width
                for i in range(width):
                    out[r, start + i] = sums[k, place, i] * results[k, place]
        scales[r] = shrink(out[r], out[r])


# ---------------------------------------------------------------------------- products of few rows
@reordered
def multiply(queries: Any, keys: Any, products: Any) -> None:
    """Queries [kv heads, places, width] times keys [kv heads, slots, width]: products [kv heads, places, keys]."""
    count = products.shape[2]
    for k in range(queries.shape[0]):
        for place in range(queries.shape[1]):
            query, out = queries[k, place], products[k, place]
            for j in range(0, count - 3, 4):  # four keys at a time keep the processor's adders busy
                a, b, c, d = F(0.0), F(0.0), F(0.0), F(0.0)
                for i in range(query.shape[0]):
                    a += query[i] * keys[k, j, i]
                    b += query[i] * keys[k, j + 1, i]
                    c += query[i] * keys[k, j + 2, i]
                    d += query[i] * keys[k, j + 3, i]
                out[j], out[j + 1], out[j + 2], out[j + 3] = a, b, c, d
            for j in range(count - count % 4, count):
                total = F(0.0)
                for i in range(query.shape[0]):
                    total += query[i] * keys[k, j, i]
                out[j] = total


@reordered
def gather(weights: Any, values: Any, sums: Any) -> None:
    """Weights [kv heads, places, keys] times values [kv heads, slots, width]: sums [kv heads, places, width]."""
    count = weights.shape[2]
    for k in range(weights.shape[0]):
        for place in range(weights.shape[1]):
            total, weight = sums[k, place], weights[k, place]
            total[:] = F(0.0)
            for j in range(0, count - 3, 4):  # four values at a time: the total is read and written a quarter as often
                a, b, c, d = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
                if a + b + c + d > F(0.0):
                    for i in range(total.shape[0]):
                        total[i] += (
                            a * values[k, j, i]
                            + b * values[k, j + 1, i]
                            + c * values[k, j + 2, i]
                            + d * values[k, j + 3, i]
                        )
            for j in range(count - count % 4, count):
                for i in range(total.shape[0]):
                    total[i] += weight[j] * values[k, j, i]
