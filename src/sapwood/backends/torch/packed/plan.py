"""What a pass is told: tables of a network, of those who are in the pass, and where numbers lie on the way."""

from typing import Any, NamedTuple

QKV, OUT, GATE_UP, DOWN = range(4)
BLOCKS, DEPTH, FINE = 3, 4, 5  # columns of places
FIRST, COUNT, LENGTH, SINCE, RUN, RUNS, SEEN, PLANES, SIZES, SLOTS = range(10)  # columns of pieces


class Net(NamedTuple):
    """What all passes of a network share."""

    places: Any  # [layers, 4, 6] int64, where the weights of each product lie, and whether its rows are fine
    norms: Any  # [layers, 2, width]
    bias: Any  # [layers, outputs of qkv], or [layers, 0]
    head_norms: Any  # of queries and keys, [layers, 2, head width], or [layers, 2, 0]
    sights: Any  # [layers] int64, which of the crowd's sights a layer has
    head: Any  # [6] int64, as in places
    norm: Any  # [width], before the output head
    eps: Any
    scale: Any  # of a query times a key
    levels: Any  # of queries and keys
    kv_heads: Any
    inner: Any  # width of the MLP


class Crowd(NamedTuple):
    """Who is in a pass and sees what; a piece is what one session brings."""

    pieces: Any  # [pieces, 10] int64: rows, committed keys, nodes before the rows, where the rest begins
    turns: Any  # [2, rows, head width / 2], cosines and sines of the positions
    slots: Any  # [rows] int64, where keys and values go
    runs: Any  # [runs of all pieces, 2] int64
    oldest: Any  # [sights, rows] int64, first committed key that is seen
    seen: Any  # [sights, rows * nodes of all pieces] bool


class Work(NamedTuple):
    """What is wanted, and where numbers lie on the way."""

    keep: Any  # [layers] int64, where the input of a layer is kept; -1 where it is not
    kept: Any  # [kept layers, rows, width], out
    stream: Any  # [rows, width], in and out
    entered: Any  # [rows, longest input], what goes into a product
    whole: Any  # [2 * rows, longest input] uint8, the same on the grid
    products: Any  # [rows, most outputs]
    scales: Any  # [rows] of the products
    queries: Any  # [rows, heads, head width] int16
    steps: Any  # [rows, heads], size of their steps times the scale of attention
    spare: Any  # [workers, 2, head width]
    weights: Any  # [workers, heads to a key, most keys and room]
    shares: Any  # the same in int16
    sums: Any  # [workers, heads to a key, head width]
    marks: Any  # [workers, 3 + heads to a key]
    bits: Any  # [workers, MLP width] int32
    states: Any  # [rows, width], what the output head reads, out
    logits: Any  # [spoken rows, vocab and padding], out
    soon: Any  # [n, 2] int64, addresses and bytes of what is wanted after the pass
