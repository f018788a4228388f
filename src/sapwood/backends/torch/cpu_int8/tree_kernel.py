"""Grows an EAGLE-3 tree in one compiled call that several threads run together.

A step expands some leaves: it runs the head on them, adds the best tokens of each as children, and
plans the next step. Step 0 prefills the new text, whose last row is the root. `facts` holds rows
and offset of each step, written once, since a late thread still reads those of finished steps.
"""

from typing import Any, NamedTuple

import numpy as np

from sapwood.backends.torch.cpu_int8.best_first import plan
from sapwood.backends.torch.cpu_int8.eagle_kernels import choose, read_heads
from sapwood.backends.torch.cpu_int8.embedding_table import read_row
from sapwood.backends.torch.cpu_int8.int8_gemm import multiply, put
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, LINE, borrow
from sapwood.backends.torch.cpu_int8.pass_args import BLOCKS, DEPTH
from sapwood.backends.torch.cpu_int8.pointwise import compiled, inlined, level, open_gate, shrink
from sapwood.backends.torch.cpu_int8.simd import turn
from sapwood.backends.torch.cpu_int8.thread_team import COUNTERS, finish, share, take, wait

FUSE, QKV, OUT, GATE_UP, DOWN, SPEAK = range(6)  # linear layers
TOKEN_NORM, STATE_NORM, MIDDLE_NORM, LAST_NORM = range(4)
PIECE = 128 * 1024  # bytes of weights in one item


class HeadWeights(NamedTuple):
    """Weights of a head, shared by all its trees."""

    places: Any  # [6, 6] int64, addresses and sizes of each layer's weights
    norms: Any  # [4, width]
    embedding: Any  # [vocab, width]; no rows if it is in blocks
    blocks: Any  # [vocab, groups, bytes] of an `EmbeddingTable`
    halves: Any  # [65536], float32 of each float16
    vocabulary: Any  # [draft vocab] int64, target ids
    rates: Any  # [head width / 2] float64, radians per position
    eps: Any
    after: Any  # True if the residual stream begins after the norm
    heads: Any
    inner: Any  # width of the MLP


class HeadText(NamedTuple):
    """New text and the KV cache of the head."""

    low: Any  # [rows of a pass, width], the target's hidden states in a low layer
    middle: Any  # the same in a middle layer
    high: Any
    rows: Any  # [rows] int64, rows of the pass that were accepted
    tokens: Any  # [rows] int64, the token after each
    first: Any  # position of the first row
    keys: Any  # [kv heads, slots, head width]
    values: Any
    before: Any  # slots in use


class TreeScratch(NamedTuple):
    """Scratch buffers; tree rows are those of expanded leaves, the root first."""

    entered: Any  # [rows, longest input], inputs of a layer
    whole: Any  # [rows, longest input] uint8, the same quantised
    products: Any  # [rows, most outputs]
    scales: Any  # [rows], scales of the outputs
    states: Any  # [rows, width], residual stream
    embeds: Any  # [rows, width], embeddings of tokens
    query: Any  # [rows, heads, head width]
    turns: Any  # [rows, 2, head width / 2], cosines and sines
    weights: Any  # [workers, heads to a key, keys and padding]
    sums: Any  # [workers, strips, heads to a key, STRIP]
    bits: Any  # [rows, MLP width] int32
    logits: Any  # [rows, draft vocab and padding]
    scratch: Any  # [rows, draft vocab]
    ids: Any  # [rows, children] int64, draft tokens
    chances: Any  # [rows, children] float64
    outputs: Any  # [tree rows, width]
    owners: Any  # [tree rows] int64, their nodes
    ups: Any  # [tree rows] int64, row of the parent
    seen: Any  # [tree rows, tree rows] bool, itself and its ancestors
    best: Any  # [most nodes + 1] float64, largest reach first


# -------------------------------------------------------------------------------------------- rows
@inlined
def set_grid(work: Any, r: int, width: int, factor: Any) -> None:
    """Scale and quantise the inputs of a layer."""
    entered = work.entered[r, :width]
    work.scales[r] = shrink(entered, entered) * factor
    put(entered, work.whole[r : r + 1])


@inlined
def norm_row(work: Any, norm: Any, eps: Any, row: Any, r: int) -> None:
    """Norm a row and quantise it for a layer."""
    for i in range(row.shape[0]):
        work.entered[r, i] = row[i] * norm[i]
    set_grid(work, r, row.shape[0], level(row, eps))


@inlined
def feed(text: Any, work: Any, r: int) -> None:
    """Quantise the features of a row."""
    width = text.low.shape[1]
    row = text.rows[r]
    work.entered[r, :width] = text.low[row]
    work.entered[r, width : 2 * width] = text.middle[row]
    work.entered[r, 2 * width : 3 * width] = text.high[row]
    set_grid(work, r, 3 * width, np.float32(1.0))


@inlined
def pair(net: Any, text: Any, work: Any, grown: Any, step: int, first: int, r: int) -> None:
    """Concatenate the normed embedding of a token and the normed state of its parent."""
    width = net.norms.shape[1]
    state = work.states[r]
    if step:
        token = grown.tokens[work.owners[first + r]]
        state[:] = work.outputs[work.ups[first + r]]
    else:
        token = text.tokens[r]
        for i in range(width):
            state[i] = work.products[r, i] * work.scales[r]
    embed = work.embeds[r]
    if net.blocks.shape[0]:
        read_row(net.blocks, net.halves, token, embed)
    else:
        embed[:] = net.embedding[token]
    entered = work.entered[r]
    eps = net.eps
    here = level(embed, eps)
    there = level(state, eps)
    for i in range(width):
        entered[i] = embed[i] * net.norms[TOKEN_NORM, i] * here
        entered[width + i] = state[i] * net.norms[STATE_NORM, i] * there
    if net.after:
        state[:] = entered[width : 2 * width]
    set_grid(work, r, 2 * width, np.float32(1.0))


@inlined
def spread(net: Any, text: Any, work: Any, grown: Any, step: int, first: int, r: int) -> None:
    """Rotate queries and keys, and store keys and values; of text, only the last row queries."""
    heads = net.heads
    kv_heads = text.keys.shape[0]
    d = text.keys.shape[2]
    new = text.tokens.shape[0]
    place = r
    product = work.products[r]
    if step:
        position = text.first + new - 1 + grown.depths[work.owners[first + r]]
        slot = text.before + new - 1 + first + r
    else:
        position = text.first + r
        slot = text.before + r
        place = 0 if r == new - 1 else -1
        if place == 0:
            work.states[0] = work.states[r]
    for i in range(d // 2):
        angle = position * net.rates[i]
        work.turns[r, 0, i], work.turns[r, 1, i] = np.cos(angle), np.sin(angle)
    for i in range((heads + 2 * kv_heads) * d):
        product[i] *= work.scales[r]
    cos, sin = work.turns[r, 0].ctypes.data, work.turns[r, 1].ctypes.data
    if place >= 0:
        for h in range(heads):
            turn(
                product[h * d : (h + 1) * d].ctypes.data,
                cos,
                sin,
                d // 2,
                work.query[place, h].ctypes.data,
            )
    for h in range(kv_heads):
        start = (heads + h) * d
        turn(
            product[start : start + d].ctypes.data, cos, sin, d // 2, text.keys[h, slot].ctypes.data
        )
        text.values[h, slot] = product[start + kv_heads * d : start + kv_heads * d + d]


@inlined
def read(net: Any, text: Any, work: Any, rows: int, first: int, unit: int, worker: int) -> None:
    """Attention of one row for a group of heads."""
    kv_heads = text.keys.shape[0]
    d = text.keys.shape[2]
    r = unit // kv_heads
    k = unit % kv_heads
    group = net.heads // kv_heads
    trees = first + rows
    count = text.before + text.tokens.shape[0] - 1 + trees
    query = work.query[r, k * group : (k + 1) * group]
    out = work.entered[r, k * group * d : (k + 1) * group * d]
    keys, values = text.keys[k].ctypes.data, text.values[k].ctypes.data
    read_heads(
        query,
        keys,
        values,
        count,
        work.seen[first + r, :trees],
        work.weights[worker],
        work.sums[worker],
        out,
    )


@inlined
def middle(net: Any, work: Any, r: int) -> None:
    """Add the attention output to the residual stream, and norm it for the MLP."""
    state = work.states[r]
    for i in range(state.shape[0]):
        state[i] += work.products[r, i] * work.scales[r]
    norm_row(work, net.norms[MIDDLE_NORM], net.eps, state, r)


@inlined
def gate(net: Any, work: Any, r: int) -> None:
    """Activation of the MLP."""
    products = work.products[r]
    inner = net.inner
    gates = products[:inner]
    ups = products[inner : 2 * inner]
    open_gate(gates, ups, work.scales[r], work.entered[r, :inner], work.bits[r])
    set_grid(work, r, inner, np.float32(1.0))


@inlined
def leave(net: Any, work: Any, first: int, r: int) -> None:
    """The layer's output, normed for the output head."""
    output = work.outputs[first + r]
    for i in range(output.shape[0]):
        output[i] = work.states[r, i] + work.products[r, i] * work.scales[r]
    norm_row(work, net.norms[LAST_NORM], net.eps, output, r)


@inlined
def product(net: Any, work: Any, which: int, rows: int, start: int, stop: int) -> None:
    """Some blocks of a layer's outputs."""
    out = work.logits if which == SPEAK else work.products
    multiply(net.places[which], work.whole, rows, start, stop, out)
    if which == SPEAK:
        for r in range(rows):
            scale = work.scales[r]
            for i in range(start * BLOCK, stop * BLOCK):
                out[r, i] *= scale


# ------------------------------------------------------------------------------------------ stages
(
    FEED,
    FUSING,
    PAIR,
    ASKING,
    SPREAD,
    READ,
    GRID,
    ANSWERING,
    MIDDLE,
    OPENING,
    GATE,
    CLOSING,
    LEAVE,
    SPEAKING,
) = range(14)
CHOOSE = 14
PLAN = 15
STAGES = 16
LAYER = PAIR  # the first stage of a step without new text
PRODUCTS = np.full(STAGES, -1)  # linear layer of each stage
PRODUCTS[[FUSING, ASKING, ANSWERING, OPENING, CLOSING, SPEAKING]] = (
    FUSE,
    QKV,
    OUT,
    GATE_UP,
    DOWN,
    SPEAK,
)


@inlined
def extent(net: Any, text: Any, stage: int, rows: int, workers: int) -> tuple[int, int]:
    """Units of a stage, and the items it is split into."""
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
    net: Any,
    text: Any,
    work: Any,
    grown: Any,
    step: int,
    stage: int,
    rows: int,
    first: int,
    unit: int,
    worker: int,
) -> None:
    """Run one unit of a stage over rows."""
    if stage == FEED:
        feed(text, work, unit)
    elif stage == PAIR:
        pair(net, text, work, grown, step, first, unit)
    elif stage == SPREAD:
        spread(net, text, work, grown, step, first, unit)
    elif stage == READ:
        read(net, text, work, rows, first, unit, worker)
    elif stage == GRID:
        set_grid(work, unit, net.heads * text.keys.shape[2], np.float32(1.0))
    elif stage == MIDDLE:
        middle(net, work, unit)
    elif stage == GATE:
        gate(net, work, unit)
    elif stage == LEAVE:
        leave(net, work, first, unit)
    elif stage == CHOOSE:
        vocab = net.vocabulary.shape[0]
        choose(work.logits[unit, :vocab], work.scratch[unit], work.ids[unit], work.chances[unit])


@compiled
def grow(
    net: Any,
    text: Any,
    rule: Any,
    work: Any,
    grown: Any,
    facts: Any,
    counters: Any,
    worker: int,
    workers: int,
) -> int:
    """Run one worker's share of a tree; the number of times it yielded its core.

    Counters int64 [steps * STAGES, COUNTERS] and facts [steps + 1, 2], the rows of a step and the
    tree rows before it, begin as zeros.
    """
    net = borrow(net)
    text = borrow(text)
    rule = borrow(rule)
    work = borrow(work)
    grown = borrow(grown)
    counter = counters.ctypes.data
    yields = 0
    step = 0
    while step == 0 or facts[step, 0]:
        first = facts[step, 1]
        for stage in range(LAYER if step else 0, STAGES):
            rows = facts[step, 0] if step else text.tokens.shape[0] if stage <= SPREAD else 1
            units, items = extent(net, text, stage, rows, workers)
            item = take(counter, items, worker)
            while item < items:
                start, stop = share(units, item, items)
                if PRODUCTS[stage] >= 0:
                    product(net, work, PRODUCTS[stage], rows, start, stop)
                elif stage == PLAN:
                    plan(rule, work, grown, net.vocabulary, facts, step, rows, first)
                else:
                    for unit in range(start, stop):
                        act(net, text, work, grown, step, stage, rows, first, unit, worker)
                finish(counter)
                item = take(counter, items, worker)
            yields += wait(counter, items)
            counter += 8 * COUNTERS
        step += 1
    return yields
