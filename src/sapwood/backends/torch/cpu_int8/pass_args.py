"""Arguments of a compiled pass: tables of the network and the sessions, and buffers."""

from typing import Any, NamedTuple

QKV, OUT, GATE_UP, DOWN = range(4)
# columns of places
BLOCKS = 3
DEPTH = 4
INPUTS = 5
WHOLE, SPLIT, GROUPED = range(3)  # inputs: an int8 row, a row and its remainder, groups of 32
MOST_LINES = 3  # lines of bytes of a row, in any form
FIRST, COUNT, LENGTH, SINCE, RUN, RUNS, SEEN, PLANES, SIZES, SLOTS = range(10)  # columns of pieces


class NetworkTables(NamedTuple):
    """Tables shared by all passes of a network."""

    # [layers, 4, 6] int64: addresses and sizes of each layer's weights, form of the inputs
    places: Any
    norms: Any  # [layers, 2, width]
    bias: Any  # [layers, outputs of qkv], or [layers, 0]
    head_norms: Any  # of queries and keys, [layers, 2, head width], or [layers, 2, 0]
    sights: Any  # [layers] int64, index of the layer's window among the visibility tables
    rotary: Any  # [layers] int64, index of the layer's angles among the turns
    head: Any  # [6] int64, as in places
    norm: Any  # [width], before the output head
    eps: Any
    scale: Any  # of a query times a key
    levels: Any  # of queries and keys
    kv_heads: Any
    inner: Any  # width of the MLP


class SessionTables(NamedTuple):
    """Sessions of a pass and their visible keys; a piece is the rows of one session."""

    # [pieces, 10] int64: rows, committed keys, nodes before the rows, offsets into the other tables
    pieces: Any
    turns: Any  # [angles, 2, rows, head width / 2], cosines and sines of the positions
    slots: Any  # [rows] int64, slots that keys and values are written to
    runs: Any  # [runs of all pieces, 2] int64
    oldest: Any  # [windows, rows] int64, first visible committed key
    seen: Any  # [windows, rows * nodes of all pieces] bool


class ExtraTables(NamedTuple):
    """Tables of an extended network beside `NetworkTables`; absent parts have size 0."""

    pre_norms: Any  # [layers] bool, False: a sublayer reads the residual stream as it is
    post_norms: Any  # [layers, 2, width], of the outputs of attention and MLP
    row_norms: Any  # [layers, outputs of queries and keys]
    add_bias: Any  # [layers, 2, width], of attention output and down projection
    gate_bias: Any  # [layers, experts or 1, 2, inner], of gate and up
    gate: Any  # GateForm
    sinks: Any  # [layers, heads]
    attention_cap: Any  # soft caps, 0 for none
    logit_cap: Any
    routers: Any  # [layers, width, experts]
    router_bias: Any  # [layers, experts]
    down_bias: Any  # [layers, experts, width], of down projections of experts
    experts: Any  # [layers, 2, experts, 6] int64, gate and up, down: as in places
    normalised: Any  # bool, shares of a row's experts add up to 1


class ExtraScratch(NamedTuple):
    """Scratch buffers of an extended pass beside those of `PassScratch`."""

    caps: Any  # [workers, 2, most keys or logits]
    routes: Any  # [rows, 2, experts]
    picks: Any  # [rows, chosen] int64, experts of each row
    shares: Any  # [rows, chosen], of their outputs
    slots: Any  # [rows, chosen] int64, places among the rows of all experts
    owners: Any  # [rows * chosen] int64, expert of each place
    firsts: Any  # [experts + 1] int64, first place of each expert
    active: Any  # [1 + experts] int64, number of experts with rows, and these
    routed: Any  # [MOST_LINES * rows * chosen, longest input] uint8, quantised rows at their places
    scales: Any  # [rows * chosen], of the inputs at their places


class PassScratch(NamedTuple):
    """Outputs and scratch buffers of a pass."""

    keep: Any  # [layers] int64, index in `kept`; -1 if not kept
    kept: Any  # [kept layers, rows, width], out
    stream: Any  # [rows, width], in and out
    entered: Any  # [rows, longest input], inputs of a layer
    whole: Any  # [MOST_LINES * rows, longest input] uint8, the same quantised
    products: Any  # [rows, most outputs], outputs of a layer
    scales: Any  # [rows], scales of the outputs
    queries: Any  # [rows, heads, head width] int16
    steps: Any  # [rows, heads], quantisation steps times the scale of attention
    spare: Any  # [workers, 2, head width]
    weights: Any  # [workers, heads to a key, most keys and padding]
    shares: Any  # the same in int16
    sums: Any  # [workers, heads to a key, head width]
    marks: Any  # [workers, 3 + heads to a key]
    bits: Any  # [workers, MLP width] int32
    states: Any  # [rows, width], final hidden states, out
    logits: Any  # [logit rows, vocab and padding], out
    prefetch: Any  # [n, 2] int64, addresses and bytes to load after the pass
