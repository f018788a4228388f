"""Attention of a head's own layer: sums over keys in steps, shared among programs.

A draft may differ in its last bits from pass to pass, so the sums are in the order that is fastest.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl

from sapwood.backends.torch.cuda.kernels.launch import WIDEN


@triton.jit
def taken(keys, values, away, inside, there):
    """Keys [width, step] and values [step, width] of one step of slots."""
    k = tl.load(keys + away[None, :], inside[None, :] & there[:, None], 0.0)
    return k, tl.load(values + away[:, None], inside[:, None] & there[None, :], 0.0)


@triton.jit
def add_keys(q, k, v, seen, peak, total, found, scale):
    """Add one step of slots to the running softmax."""
    if WIDEN:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = tl.where(seen, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))
    best = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp2(scores - safe[:, None])
    fade = tl.exp2(peak - safe)
    found = tl.dot(weights.to(v.dtype), v, found * fade[:, None], input_precision="ieee")
    return best, total * fade + tl.sum(weights, 1), found


@triton.jit
def merged(
    found,
    peak,
    total,
    parts,
    counter,
    mine,
    line,
    lines,
    live,
    mask,
    dims,
    width,
    splits: tl.constexpr,
):
    """Merge the partial results of all splits + 1 programs in the last one; True there."""
    place = (
        parts + line[:, None] * width + dims[None, :]
    )  # [splits + 1, lines, width], then peaks, then totals
    peaks = parts + (splits + 1) * lines * width + line
    totals = peaks + (splits + 1) * lines
    here = mine * lines
    tl.store(place + here * width, found, mask)
    tl.store(peaks + here, peak, live)
    tl.store(totals + here, total, live)
    tl.debug_barrier()
    done = tl.atomic_add(counter, 1, sem="acq_rel") == splits
    if done:
        tl.store(counter, 0)
        peak = tl.zeros_like(peak) + float("-inf")
        total = tl.zeros_like(total)
        found = tl.zeros_like(found)
        for part in tl.range(0, splits + 1, loop_unroll_factor=4):
            top = tl.load(peaks + part * lines, live, float("-inf"), cache_modifier=".cg")
            sums = tl.load(totals + part * lines, live, 0.0, cache_modifier=".cg")
            read = tl.load(place + part * lines * width, mask, 0.0, cache_modifier=".cg")
            best = tl.maximum(peak, top)
            safe = tl.where(best == float("-inf"), 0.0, best)
            old, new = tl.exp2(peak - safe), tl.exp2(top - safe)
            peak = best
            total = total * old + sums * new
            found = found * old[:, None] + read * new[:, None]
    return found, total, done
