"""Tree attention: a row sees the committed slots of its KV sequence and its ancestors.

The output of a row has the same bits whatever else is in the pass. Keys are added up in the order
of their positions and in an order of sums that depends on positions alone: chunks of CHUNK keys,
each by matrix products from zero; the chunks of a group one after the other; the groups one after
the other. The pass decides only which program computes which of these sums:

- A unit is a program that walks one group of keys, or the first groups, for a block of rows of one
  sequence and one head of keys.
- The rows of a chain lie in the slots of their positions, so units walk them as well.
- In a tree the last, open chunks differ from row to row. Each row has a program of its own, which
  gathers the keys of the row's path in the order of positions; `open_paths` finds them once a pass.
- The last program to finish adds up what all of them found.
- Where blocks alone fill the device, the only program of a block and head does all of this.

The first committed keys are loaded before the queries are there: they were written long before.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.activations import soft_cap
from sapwood.backends.torch.cuda.kernels.attention_tiles import CHUNK, HeadSizes
from sapwood.backends.torch.cuda.kernels.attention_tiles import AttentionTiles as AttentionTiles
from sapwood.backends.torch.cuda.kernels.device_limits import is_hopper
from sapwood.backends.torch.cuda.kernels.key_groups import STEP, group_at, start_of
from sapwood.backends.torch.cuda.kernels.launch import WIDEN, launch_next_kernel, options, wait
from sapwood.backends.torch.cuda.kernels.linear import workspace

NEVER = tl.constexpr(1 << 30)
# numbers of a tile, up to which registers hold several; others' products leave fewer of them
ROOM = tl.constexpr(64 * 64 if is_hopper() else 16 * 32)


@triton.jit
def block_fields(block, blocks):
    """First slot, committed length, first row, rows and chain flag of a block."""
    base = tl.load(block, cache_modifier=".cg")
    length = tl.load(block + blocks, cache_modifier=".cg").to(tl.int32)
    first = tl.load(block + 2 * blocks, cache_modifier=".cg").to(tl.int32)
    held = tl.load(block + 3 * blocks, cache_modifier=".cg").to(tl.int32)
    chain = tl.load(block + 5 * blocks, cache_modifier=".cg").to(tl.int32)
    return base, tl.where(held > 0, length, 0), first, held, chain


@triton.jit
def loaded(keys, values, away, inside, there):
    """Keys [width, STEP] and values [STEP, width] of one chunk; zeros outside."""
    k = tl.load(keys + away[None, :], inside[None, :] & there[:, None], 0.0)
    return k, tl.load(values + away[:, None], inside[:, None] & there[None, :], 0.0)


@triton.jit
def loaded_queries(queries, line, live, dims, there, width):
    """Queries of these lines, [lines, width]; zeros where a line is not live."""
    place = queries + line[:, None] * width + dims[None, :]
    return tl.load(place, live[:, None] & there[None, :], 0.0)


@triton.jit
def attended(q, k, v, seen, scale, cap: tl.constexpr):
    """Largest score, sum of weights and weighted values of one chunk, from zero.

    The weights are summed by a product as well: its order does not depend on the number of rows.
    """
    if WIDEN:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = soft_cap(tl.dot(q, k, input_precision="ieee") * scale, cap)
    scores = tl.where(seen, scores, float("-inf"))
    peak = tl.max(scores, 1)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(scores - safe[:, None]).to(v.dtype)
    ones = tl.full((v.shape[0], 16), 1.0, v.dtype)
    total = tl.max(tl.dot(weights, ones, input_precision="ieee"), 1)
    return peak, total, tl.dot(weights, v, input_precision="ieee")


@triton.jit
def added(peak, total, found, top, sums, read):
    """Running sums with one more part; exact if either of them is empty."""
    best = tl.maximum(peak, top)
    safe = tl.where(best == float("-inf"), 0.0, best)
    old = tl.exp2(peak - safe)
    new = tl.exp2(top - safe)
    return best, total * old + sums * new, found * old[:, None] + read * new[:, None]


@triton.jit
def next_chunk(
    begins, peak, total, found, group_peak, group_total, group_found, top, sums, read
):  # fmt: skip
    """Sums with one more chunk, without a branch; if it begins a group, the one before is whole."""
    whole_peak, whole_total, whole_found = added(
        peak, total, found, group_peak, group_total, group_found
    )
    longer_peak, longer_total, longer_found = added(
        group_peak, group_total, group_found, top, sums, read
    )
    return (
        tl.where(begins, whole_peak, peak),
        tl.where(begins, whole_total, total),
        tl.where(begins, whole_found, found),
        tl.where(begins, top, longer_peak),
        tl.where(begins, sums, longer_total),
        tl.where(begins, read, longer_found),
    )


@triton.jit
def unit_range(unit, stop, lead: tl.constexpr, single: tl.constexpr):
    """Positions below `stop` that a unit walks."""
    if single:
        return 0, stop
    if lead == 0:  # all groups but the open one, then the open one
        middle = start_of(group_at(stop))
        return tl.where(unit == 0, 0, middle), tl.where(unit == 0, middle, stop)
    group = lead + unit - 1
    start = tl.where(unit == 0, 0, start_of(group))
    return start, tl.minimum(start_of(group + 1), stop)


@triton.jit
def part_places(parts, line, lines, dims, width, count: tl.constexpr):
    """Pointers to the sums, peaks and totals of part 0; parts are `lines` apart."""
    place = parts + line[:, None] * width + dims[None, :]
    peaks = parts + count * lines * width + line
    return place, peaks, peaks + count * lines


@triton.jit
def store_part(
    parts, part, line, lines, live, dims, there, width, peak, total, found, count: tl.constexpr
):
    """Leave a part for the program that adds up all of them."""
    place, peaks, totals = part_places(parts, line, lines, dims, width, count)
    tl.store(place + part * lines * width, found, live[:, None] & there[None, :])
    tl.store(peaks + part * lines, peak, live)
    tl.store(totals + part * lines, total, live)


@triton.jit
def load_part(parts, part, line, lines, live, dims, there, width, count: tl.constexpr):
    """Peak, total and weighted values of a part."""
    place, peaks, totals = part_places(parts, line, lines, dims, width, count)
    top = tl.load(peaks + part * lines, live, float("-inf"), cache_modifier=".cg")
    sums = tl.load(totals + part * lines, live, 0.0, cache_modifier=".cg")
    mask = live[:, None] & there[None, :]
    return top, sums, tl.load(place + part * lines * width, mask, 0.0, cache_modifier=".cg")


@triton.jit
def seen_range(
    unit, stop, length, window, lead: tl.constexpr, single: tl.constexpr, windowed: tl.constexpr
):  # fmt: skip
    """Positions that a unit walks, from the first that any row sees; and their end, at most."""
    start, end = unit_range(unit, stop, lead, single)
    edge = end
    if lead != 0:  # without the positions, which are not there yet
        _, edge = unit_range(unit, NEVER, lead, single)
    if windowed:  # no row sees what lies before
        start = tl.maximum(start, tl.maximum(length - window + 1, 0) // STEP * STEP)
    return start, end, edge


@triton.jit
def walk_unit(
    q, k, v, keys, values, position, there, start, end, length, chain, scale, window, pace,
    lead: tl.constexpr, windowed: tl.constexpr, cap: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Sums over the keys from start to end, for all rows of a block; k and v are the first ones.

    Those of all groups but the last, and those of the last one.
    """
    rows: tl.constexpr = q.shape[0]
    width: tl.constexpr = q.shape[1]
    newest = tl.where(chain != 0, position, NEVER)
    peak = tl.full((rows,), float("-inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    found = tl.zeros((rows, width), tl.float32)
    # of the group that is being walked
    group_peak = peak
    group_total = total
    group_found = found
    if early:
        at = start + tl.arange(0, STEP)
        fresh = (at >= length) & (at < end)  # written in this pass
        k_new, v_new = loaded(keys, values, at * pace, fresh, there)
        k = tl.where(fresh[None, :], k_new, k)
        v = tl.where(fresh[:, None], v_new, v)
        seen = visible(at, end, newest, position, window, windowed)
        group_peak, group_total, group_found = attended(q, k, v, seen, scale, cap)
        start += STEP
    for slot in range(start, end, STEP):
        at = slot + tl.arange(0, STEP)
        k, v = loaded(keys, values, at * pace, at < end, there)
        seen = visible(at, end, newest, position, window, windowed)
        top, sums, read = attended(q, k, v, seen, scale, cap)
        if lead == 0:  # several groups, each summed by itself
            peak, total, found, group_peak, group_total, group_found = next_chunk(
                slot == start_of(group_at(slot)), peak, total, found, group_peak, group_total,
                group_found, top, sums, read,
            )  # fmt: skip
        else:
            group_peak, group_total, group_found = added(
                group_peak, group_total, group_found, top, sums, read
            )
    return peak, total, found, group_peak, group_total, group_found


@triton.jit
def visible(at, end, newest, position, window, windowed: tl.constexpr):
    """Mask of the keys that each row sees, [rows, STEP]."""
    seen = (at < end)[None, :] & (at[None, :] <= newest[:, None])
    if windowed:
        seen &= at[None, :] > position[:, None] - window
    return seen


@triton.jit
def walk_path(
    q, k, v, parts, keys, values, path, where, line, live, dims, there, end, length, lines, scale,
    window, pace, width,
    units: tl.constexpr, opens: tl.constexpr, windowed: tl.constexpr, cap: tl.constexpr,
):  # fmt: skip
    """Leave the sums over the open chunks of one row of a tree, a part for each chunk."""
    lanes = tl.arange(0, STEP)
    closed = length // STEP * STEP
    at = closed + lanes
    fresh = (at >= length) & (at < end)  # written in this pass
    k_new, v_new = loaded(keys, values, where * pace, fresh, there)
    k = tl.where(fresh[None, :], k_new, k)
    v = tl.where(fresh[:, None], v_new, v)
    for chunk in range((end - closed + STEP - 1) // STEP):
        if chunk > 0:
            at = closed + chunk * STEP + lanes
            where = tl.load(path + chunk * STEP + lanes)
            k, v = loaded(keys, values, where * pace, at < end, there)
        seen = at < end
        if windowed:
            seen &= at > end - 1 - window
        peak, total, found = attended(q, k, v, seen[None, :], scale, cap)
        store_part(
            parts, units + chunk, line, lines, live, dims, there, width, peak, total, found,
            units + opens,
        )  # fmt: skip


@triton.jit
def walk_paths(
    q, keys, values, paths, positions, there, row, live, position, first, held, length, peak, total,
    found, group_peak, group_total, group_found, scale, window, pace,
    opens: tl.constexpr, windowed: tl.constexpr, cap: tl.constexpr,
):  # fmt: skip
    """Go on over the open chunks of each row of a tree, in the program that walked the closed ones.

    The product for one row is made with the queries of the whole block, and its own lines are kept.
    """
    rows: tl.constexpr = q.shape[0]
    width: tl.constexpr = q.shape[1]
    lanes = tl.arange(0, STEP)
    closed = length // STEP * STEP
    deepest = tl.max(tl.where(live, position, -1), 0)
    for chunk in range((deepest - closed + STEP) // STEP):
        place = closed + chunk * STEP
        at = place + lanes
        top = tl.full((rows,), float("-inf"), tl.float32)
        sums = tl.zeros((rows,), tl.float32)
        read = tl.zeros((rows, width), tl.float32)
        for number in range(held):
            mine = first + number
            end = tl.load(positions + mine).to(tl.int32) + 1
            inside = at < end
            where = tl.load(paths + (mine * opens + chunk) * STEP + lanes, inside, 0)
            k, v = loaded(keys, values, where * pace, inside, there)
            seen = inside
            if windowed:
                seen &= at > end - 1 - window
            tip, part, gain = attended(q, k, v, seen[None, :], scale, cap)
            own = row == mine
            top = tl.where(own, tip, top)
            sums = tl.where(own, part, sums)
            read = tl.where(own[:, None], gain, read)
        peak, total, found, group_peak, group_total, group_found = next_chunk(
            place == start_of(group_at(place)), peak, total, found, group_peak, group_total,
            group_found, top, sums, read,
        )  # fmt: skip
    return added(peak, total, found, group_peak, group_total, group_found)


@triton.jit
def sum_parts(
    parts, line, lines, live, dims, there, position, chain, length, stop, width,
    lead: tl.constexpr, units: tl.constexpr, opens: tl.constexpr,
):  # fmt: skip
    """Total and weighted values of all parts, in the order of positions."""
    rows: tl.constexpr = line.shape[0]
    count: tl.constexpr = units + opens
    peak = tl.full((rows,), float("-inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    found = tl.zeros((rows, dims.shape[0]), tl.float32)
    first = group_at(stop) if lead == 0 else lead  # groups of the first unit
    last = group_at(tl.maximum(stop - 1, 0)) - first + 1  # unit of the last key
    # the sums of one group, until the next one begins
    top, sums, read = load_part(parts, 0, line, lines, live, dims, there, width, count)
    ahead: tl.constexpr = 4 if rows * dims.shape[0] <= ROOM else 1  # parts that are loaded at once
    for unit in tl.range(1, last + 1, loop_unroll_factor=ahead):
        peak, total, found = added(peak, total, found, top, sums, read)
        top, sums, read = load_part(parts, unit, line, lines, live, dims, there, width, count)
    if opens > 0:
        closed = length // STEP * STEP
        deepest = tl.max(tl.where(live, position, -1), 0)
        chunks = tl.where(chain != 0, 0, (deepest - closed + STEP) // STEP)
        for chunk in range(chunks):
            place = closed + chunk * STEP
            tip, part, gain = load_part(
                parts, units + chunk, line, lines, live & (place <= position), dims, there, width,
                count,
            )  # fmt: skip
            if place == start_of(group_at(place)):  # the group before is complete
                peak, total, found = added(peak, total, found, top, sums, read)
                top = tip
                sums = part
                read = gain
            else:
                top, sums, read = added(top, sums, read, tip, part, gain)
    peak, total, found = added(peak, total, found, top, sums, read)
    return total, found


@triton.jit
def finish_block(
    out, counter, parts, line, lines, live, dims, there, position, chain, length, stop, width,
    lead: tl.constexpr, units: tl.constexpr, opens: tl.constexpr, programs: tl.constexpr,
):  # fmt: skip
    """Add up all parts of a block and store its rows, in the last program to finish."""
    tl.debug_barrier()
    done = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if done:
        tl.store(counter, 0)
        total, found = sum_parts(
            parts, line, lines, live, dims, there, position, chain, length, stop, width,
            lead, units, opens,
        )  # fmt: skip
        store_rows(out, line, live, dims, there, width, total, found)


@triton.jit
def _attend(
    queries, out, parts, counters, pool, paths, positions, blocks, plane, scale, window, lines,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr, group: tl.constexpr,
    tile_r: tl.constexpr, tile_g: tl.constexpr, tile_p: tl.constexpr, tile_d: tl.constexpr,
    lead: tl.constexpr, units: tl.constexpr, opens: tl.constexpr, trees: tl.constexpr,
    windowed: tl.constexpr, cap: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    unit = tl.program_id(2)
    base, length, first, held, chain = block_fields(blocks + block, tl.num_programs(0))
    dims = tl.arange(0, tile_d)
    there = dims < width
    row = first + tl.arange(0, tile_r * tile_g) // tile_g
    member = tl.arange(0, tile_r * tile_g) % tile_g
    live = (row - first < held) & (member < group)
    pace: tl.constexpr = kv_heads * width
    alone: tl.constexpr = trees and units == 1 and lead == 0  # one program also walks the paths
    programs: tl.constexpr = units + (tile_r if trees and not alone else 0)
    early: tl.constexpr = tile_r * tile_g < 64  # larger blocks need the room
    keys = pool + base * pace + head * width + dims[:, None]
    values = pool + plane + base * pace + head * width + dims[None, :]
    line = row * heads + head * group + member
    position = tl.load(positions + row, live, 0).to(tl.int32)
    newest = tl.load(positions + first + tl.maximum(held, 1) - 1).to(tl.int32)
    closed = length // STEP * STEP
    stop = tl.where(held > 0, tl.where(chain != 0, newest + 1, closed), 0)
    start, end, edge = seen_range(unit, stop, length, window, lead, programs == 1, windowed)
    mine = first + tl.maximum(unit - units, 0)
    walks = (unit >= units) & (chain == 0) & (unit - units < held)  # the path of one row
    if trees and not alone:
        newest = tl.load(positions + tl.where(walks, mine, first)).to(tl.int32)
        start = tl.where(walks, closed, start)
        end = tl.where(walks, newest + 1, end)
    at = start + tl.arange(0, STEP)
    before = tl.where(walks, length, tl.minimum(edge, tl.where(chain != 0, length, closed)))
    old = (at < before) & (walks | ((unit < units) & early))
    k, v = loaded(keys, values, at * pace, old, there)
    path = paths + mine * opens * STEP
    where = tl.load(path + tl.arange(0, STEP), walks, 0)
    wait()
    if unit < units:
        q = loaded_queries(queries, line, live, dims, there, width)
        peak, total, found, top, sums, read = walk_unit(
            q, k, v, keys, values, position, there, start, end, length, chain, scale, window, pace,
            lead, windowed, cap, early,
        )  # fmt: skip
        launch_next_kernel()
        if alone:
            peak, total, found = walk_paths(
                q, keys, values, paths, positions, there, row, live, position, first,
                tl.where(chain != 0, 0, held), length, peak, total, found, top, sums, read,
                scale, window, pace, opens, windowed, cap,
            )  # fmt: skip
        else:
            peak, total, found = added(peak, total, found, top, sums, read)
        if programs == 1:
            store_rows(out, line, live, dims, there, width, total, found)
        else:
            store_part(
                parts, unit, line, lines, live, dims, there, width, peak, total, found,
                units + opens,
            )  # fmt: skip
    elif trees and not alone:
        if walks:
            lane = tl.arange(0, tile_p)
            spot = mine * heads + head * group + lane
            q = loaded_queries(queries, spot, lane < group, dims, there, width)
            walk_path(
                q, k, v, parts, keys, values, path, where, spot, lane < group, dims, there, end,
                length, lines, scale, window, pace, width,
                units, opens, windowed, cap,
            )  # fmt: skip
        launch_next_kernel()
    if programs > 1:
        finish_block(
            out, counters + block * kv_heads + head, parts, line, lines, live, dims, there,
            position, chain, length, stop, width, lead, units, opens, programs,
        )  # fmt: skip


@triton.jit
def store_rows(out, line, live, dims, there, width, total, found):
    """Store the outputs of a block; rows that are not live see nothing."""
    made = found / tl.where(total > 0, total, 1.0)[:, None]
    place = out + line[:, None] * width + dims[None, :]
    tl.store(place, made.to(out.dtype.element_ty), live[:, None] & there[None, :])


def attend(
    queries: Tensor,  # [m, heads, width]
    planes: Tensor,  # [2, ..., slots, kv heads, width] contiguous: keys and values of the layer
    out: Tensor,  # [m, heads, width]
    *,
    heads: HeadSizes,
    blocks: Tensor,  # [FIELDS, blocks] int64; a block of no rows is skipped
    paths: Tensor,  # of `open_paths`
    positions: Tensor,  # [m] int64
    scale: float,  # of a query times a key
    tiles: AttentionTiles,
    window: int = 0,  # positions a row sees, its own included; 0 for all
    cap: float = 0.0,  # soft cap of a scaled product; 0 for none
) -> None:
    """Attention output of each head of each row."""
    group = heads.queries // heads.keys
    lines = queries.shape[0] * heads.queries
    tile_d = max(16, triton.next_power_of_2(heads.width))
    tile_g = triton.next_power_of_2(group)
    tile_r = max(tiles.rows, 16 // tile_g)
    opens = paths.shape[1] // CHUNK if tiles.trees else 0
    parts, counters = workspace(queries.device, (tiles.units + opens) * lines * (heads.width + 2))
    _attend[blocks.shape[1], heads.keys, tiles.units + (tile_r if tiles.with_paths else 0)](
        queries, out, parts, counters, planes, paths, positions, blocks, planes.stride(0),
        scale * LOG2E, window, lines, heads.queries, heads.keys, heads.width, group,
        tile_r, tile_g, max(16, tile_g), tile_d, tiles.lead, tiles.units, opens,
        tiles.trees, window > 0, cap * LOG2E, **options(tiles.warps, tiles.stages),
    )  # fmt: skip


LOG2E = 1.4426950408889634  # weights are powers of two
