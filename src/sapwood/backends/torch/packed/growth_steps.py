"""The growth of an EAGLE-3 tree, from new text to the last leaf: one compiled call that several threads run together.

A step opens some leaves: it makes rows of the head of them, gives each its best tokens as children, and
plans the next step. Step 0 reads the new text, whose last row is the root's. What a step is, `facts` says: they are
written once, for a thread that comes late still reads those of steps that are over.
"""

from typing import Any, NamedTuple

import numpy as np

from sapwood.backends.torch.packed.drafting import choose, read_heads
from sapwood.backends.torch.packed.growth_plan import plan
from sapwood.backends.torch.packed.kernels import compiled, inlined, level, open_gate, shrink
from sapwood.backends.torch.packed.machine import BLOCK, LINE, borrow
from sapwood.backends.torch.packed.plan import BLOCKS, DEPTH
from sapwood.backends.torch.packed.stream import multiply, put
from sapwood.backends.torch.packed.team import DESK, finish, share, take, wait
from sapwood.backends.torch.packed.vectors import turn

FUSE, QKV, OUT, GATE_UP, DOWN, SPEAK = range(6)  # products
TOKEN_NORM, STATE_NORM, MIDDLE_NORM, LAST_NORM = range(4)
PIECE = 128 * 1024  # bytes of weights that one worker reads at a time


class Net(NamedTuple):
    """What all growths of a head share."""

    places: Any  # [6, 6] int64, where the weights of each product lie
    norms: Any  # [4, width]
    embedding: Any  # [vocab, width]
    vocabulary: Any  # [draft vocab] int64, target ids
    rates: Any  # [head width / 2] float64, radians per position
    eps: Any
    after: Any  # True where the residual stream takes the state after its norm
    heads: Any
    inner: Any  # width of the MLP


class Text(NamedTuple):
    """The new text, and where rows of the head are kept."""

    low: Any  # [rows of a pass, width], what the target thought in a low layer
    middle: Any  # the same in a middle one
    high: Any
    rows: Any  # [rows] int64, those of the pass that are the text
    tokens: Any  # [rows] int64, the token after each
    first: Any  # position of the first row
    keys: Any  # [kv heads, slots, head width]
    values: Any
    before: Any  # slots of the text so far


class Room(NamedTuple):
    """Where numbers lie on the way; tree rows are those of opened leaves, the root's first."""

    entered: Any  # [rows, longest input], what goes into a product
    whole: Any  # [rows, longest input] uint8, the same on the grid
    products: Any  # [rows, most outputs]
    scales: Any  # [rows] of the products
    states: Any  # [rows, width], what goes on beside the layer
    query: Any  # [rows, heads, head width]
    turns: Any  # [rows, 2, head width / 2], cosines and sines
    weights: Any  # [workers, heads to a key, keys and room]
    sums: Any  # [workers, strips, heads to a key, STRIP]
    bits: Any  # [rows, MLP width] int32
    logits: Any  # [rows, draft vocab and padding]
    scratch: Any  # [rows, draft vocab]
    ids: Any  # [rows, children] int64, draft tokens
    chances: Any  # [rows, children] float64
    outputs: Any  # [tree rows, width]
    owners: Any  # [tree rows] int64, the nodes they stand for
    ups: Any  # [tree rows] int64, row of the parent
    seen: Any  # [tree rows, tree rows] bool, itself and those above
    best: Any  # [most nodes + 1] float64, largest reach first


# -------------------------------------------------------------------------------------------- rows
@inlined
def set_grid(room: Any, r: int, width: int, factor: Any) -> None:
    """Scale what a product reads, and put it on its grid."""
    entered = room.entered[r, :width]
    room.scales[r] = shrink(entered, entered) * factor
    put(entered, room.whole[r : r + 1])


@inlined
def norm_row(room: Any, norm: Any, eps: Any, row: Any, r: int) -> None:
    """Norm a row and put it on the grid of a product."""
    for i in range(row.shape[0]):
        room.entered[r, i] = row[i] * norm[i]
    set_grid(room, r, row.shape[0], level(row, eps))


@inlined
def feed(text: Any, room: Any, r: int) -> None:
    """Features on the grid."""
    width, row = text.low.shape[1], text.rows[r]
    room.entered[r, :width] = text.low[row]
    room.entered[r, width : 2 * width] = text.middle[row]
    room.entered[r, 2 * width : 3 * width] = text.high[row]
    set_grid(room, r, 3 * width, np.float32(1.0))


@inlined
def pair(net: Any, text: Any, room: Any, grown: Any, step: int, first: int, r: int) -> None:
    """The normed embedding of a token beside the normed state of the row above it."""
    width, state = net.norms.shape[1], room.states[r]
    if step:
        token = grown.tokens[room.owners[first + r]]
        state[:] = room.outputs[room.ups[first + r]]
    else:
        token = text.tokens[r]
        for i in range(width):
            state[i] = room.products[r, i] * room.scales[r]
    embed, entered, eps = net.embedding[token], room.entered[r], net.eps
    here, there = level(embed, eps), level(state, eps)
    for i in range(width):
        entered[i] = embed[i] * net.norms[TOKEN_NORM, i] * here
        entered[width + i] = state[i] * net.norms[STATE_NORM, i] * there
    if net.after:
        state[:] = entered[width : 2 * width]
    set_grid(room, r, 2 * width, np.float32(1.0))


@inlined
def spread(net: Any, text: Any, room: Any, grown: Any, step: int, first: int, r: int) -> None:
    """Rotate queries and keys, and keep keys and values; of the text only the last row asks."""
    heads, kv_heads, d = net.heads, text.keys.shape[0], text.keys.shape[2]
    new, place, product = text.tokens.shape[0], r, room.products[r]
    if step:
        position = text.first + new - 1 + grown.depths[room.owners[first + r]]
        slot = text.before + new - 1 + first + r
    else:
        position, slot = text.first + r, text.before + r
        place = 0 if r == new - 1 else -1
        if place == 0:
            room.states[0] = room.states[r]
    for i in range(d // 2):
        angle = position * net.rates[i]
        room.turns[r, 0, i], room.turns[r, 1, i] = np.cos(angle), np.sin(angle)
    for i in range((heads + 2 * kv_heads) * d):
        product[i] *= room.scales[r]
    cos, sin = room.turns[r, 0].ctypes.data, room.turns[r, 1].ctypes.data
    if place >= 0:
        for h in range(heads):
            turn(product[h * d : (h + 1) * d].ctypes.data, cos, sin, d // 2, room.query[place, h].ctypes.data)
    for h in range(kv_heads):
        start = (heads + h) * d
        turn(product[start : start + d].ctypes.data, cos, sin, d // 2, text.keys[h, slot].ctypes.data)
        text.values[h, slot] = product[start + kv_heads * d : start + kv_heads * d + d]


@inlined
def read(net: Any, text: Any, room: Any, rows: int, first: int, unit: int, worker: int) -> None:
    """What the heads that share keys read, for one row."""
    kv_heads, d = text.keys.shape[0], text.keys.shape[2]
    r, k = unit // kv_heads, unit % kv_heads
    group, trees = net.heads // kv_heads, first + rows
    count = text.before + text.tokens.shape[0] - 1 + trees
    query, out = room.query[r, k * group : (k + 1) * group], room.entered[r, k * group * d : (k + 1) * group * d]
    keys, values = text.keys[k].ctypes.data, text.values[k].ctypes.data
    read_heads(query, keys, values, count, room.seen[first + r, :trees], room.weights[worker], room.sums[worker], out)


@inlined
def middle(net: Any, room: Any, r: int) -> None:
    """Add what was read to the stream, and enter the MLP."""
    state = room.states[r]
    for i in range(state.shape[0]):
        state[i] += room.products[r, i] * room.scales[r]
    norm_row(room, net.norms[MIDDLE_NORM], net.eps, state, r)


@inlined
def gate(net: Any, room: Any, r: int) -> None:
    """Open the gates of the MLP."""
    products, inner = room.products[r], net.inner
    gates, ups = products[:inner], products[inner : 2 * inner]
    open_gate(gates, ups, room.scales[r], room.entered[r, :inner], room.bits[r])
    set_grid(room, r, inner, np.float32(1.0))


@inlined
def leave(net: Any, room: Any, first: int, r: int) -> None:
    """The layer's output, and what the output head reads of it."""
    output = room.outputs[first + r]
    for i in range(output.shape[0]):
        output[i] = room.states[r, i] + room.products[r, i] * room.scales[r]
    norm_row(room, net.norms[LAST_NORM], net.eps, output, r)


@inlined
def product(net: Any, room: Any, which: int, rows: int, start: int, stop: int) -> None:
    """Some blocks of a product."""
    out = room.logits if which == SPEAK else room.products
    multiply(net.places[which], room.whole, rows, start, stop, out)
    if which == SPEAK:
        for r in range(rows):
            scale = room.scales[r]
            for i in range(start * BLOCK, stop * BLOCK):
                out[r, i] *= scale


# ------------------------------------------------------------------------------------------ stages
FEED, FUSING, PAIR, ASKING, SPREAD, READ, GRID, ANSWERING, MIDDLE, OPENING, GATE, CLOSING, LEAVE, SPEAKING = range(14)
CHOOSE, PLAN, STAGES = 14, 15, 16
LAYER = PAIR  # the first stage of a step that reads no text
PRODUCTS = np.full(STAGES, -1)  # which product a stage is
PRODUCTS[[FUSING, ASKING, ANSWERING, OPENING, CLOSING, SPEAKING]] = FUSE, QKV, OUT, GATE_UP, DOWN, SPEAK


@inlined
def extent(net: Any, text: Any, stage: int, rows: int, workers: int) -> tuple[int, int]:
    """Units of a stage, and the items it is cut into."""
    if PRODUCTS[stage] >= 0:
        place = net.places[PRODUCTS[stage]]
        units = place[BLOCKS]
        size = units * place[DEPTH] * LINE
        return units, min(units, workers * max(1, size // (workers * PIECE)))
    if stage == PLAN:
        return 1, 1
    units = rows * text.keys.shape[0] if stage == READ else rows
    return units, min(units, 2 * workers)


@inlined
def act(
    net: Any, text: Any, room: Any, grown: Any, step: int, stage: int, rows: int, first: int, unit: int, worker: int
) -> None:
    """One unit of a stage that goes by rows."""
    if stage == FEED:
        feed(text, room, unit)
    elif stage == PAIR:
        pair(net, text, room, grown, step, first, unit)
    elif stage == SPREAD:
        spread(net, text, room, grown, step, first, unit)
    elif stage == READ:
        read(net, text, room, rows, first, unit, worker)
    elif stage == GRID:
        set_grid(room, unit, net.heads * text.keys.shape[2], np.float32(1.0))
    elif stage == MIDDLE:
        middle(net, room, unit)
    elif stage == GATE:
        gate(net, room, unit)
    elif stage == LEAVE:
        leave(net, room, first, unit)
    elif stage == CHOOSE:
        vocab = net.vocabulary.shape[0]
        choose(room.logits[unit, :vocab], room.scratch[unit], room.ids[unit], room.chances[unit])


@compiled
def grow(
    net: Any, text: Any, wish: Any, room: Any, grown: Any, facts: Any, desks: Any, worker: int, workers: int
) -> int:
    """One worker's share of a growth; desks int64 [steps * STAGES, DESK] and facts [steps + 1, 2] begin as zeros.

    Facts are rows of a step and tree rows before it. Returns how often the worker waited in vain.
    """
    net, text, wish, room, grown = borrow(net), borrow(text), borrow(wish), borrow(room), borrow(grown)
    desk, vain, step = desks.ctypes.data, 0, 0
    while step == 0 or facts[step, 0]:
        first = facts[step, 1]
        for stage in range(LAYER if step else 0, STAGES):
            rows = facts[step, 0] if step else text.tokens.shape[0] if stage <= SPREAD else 1
            units, items = extent(net, text, stage, rows, workers)
            item = take(desk, items, worker)
            while item < items:
                start, stop = share(units, item, items)
                if PRODUCTS[stage] >= 0:
                    product(net, room, PRODUCTS[stage], rows, start, stop)
                elif stage == PLAN:
                    plan(wish, room, grown, net.vocabulary, facts, step, rows, first)
                else:
                    for unit in range(start, stop):
                        act(net, text, room, grown, step, stage, rows, first, unit, worker)
                finish(desk)
                item = take(desk, items, worker)
            vain += wait(desk, items)
            desk += 8 * DESK
        step += 1
    return vain
