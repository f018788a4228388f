"""Steps between draft and pass of a batch as Triton kernels, as in `round_reference`."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import LONGEST, WORDS, RoundFields
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.reference import (
    FIRST_SLOT,
    LAST,
    NEW,
    ROOT_AT,
    ROOT_TOKEN,
    SCALARS,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.kernels.kv_move import PIECE, shift
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.kernels.topk import tile
from sapwood.backends.torch.cuda.pass_inputs import PassShape
from sapwood.backends.torch.cuda.rounds.round_reference import (
    ARGS,
    BEFORE,
    CARRIED,
    CARRY,
    OWN,
    SEED,
    TEMPERATURE,
    TEXT,
)
from sapwood.backends.torch.cuda.verify.verify_kernels import walk_tree

BLOCK = 64  # rows that one program places
STEP = 512  # numbers of a row of features that one program copies at a time


@triton.jit(do_not_specialize=["rows"])
def _take_args(
    args, carry, scalars, tokens, roots, rows,
    width: tl.constexpr, count: tl.constexpr, most: tl.constexpr, size: tl.constexpr,
    before: tl.constexpr, own: tl.constexpr, text: tl.constexpr, carried: tl.constexpr,
    new: tl.constexpr, root_at: tl.constexpr, text_rows: tl.constexpr, root: tl.constexpr,
    last: tl.constexpr, line: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    args += request * width
    scalars += request * count
    past = tl.load(args + before)
    follows = past >= 0
    carry += tl.maximum(past, 0) * line
    each = tl.arange(0, size)
    value = tl.load(args + own + each, each < count, 0)
    found = tl.where(follows, tl.load(carry), tl.load(args + own + new))
    value = tl.where(each == new, found, value)
    value = tl.where(each == last, found - 1, value)
    value = tl.where(follows & (each == root_at), tl.load(carry + 1), value)
    value = tl.where(follows & (each == text_rows), tl.load(carry + 2), value)
    value = tl.where(follows & (each == root), tl.load(carry + 3), value)
    tl.store(scalars + each, value, each < count)
    said = tl.arange(0, most)
    theirs = tl.load(carry + carried + said)
    mine = tl.load(args + text + said)
    tl.store(tokens + request * rows + said, tl.where(follows, theirs, mine), said < rows)
    tl.store(roots + request, request * rows + found - 1)


def take_args(args: Tensor, carry: Tensor, scalars: Tensor, tokens: Tensor, roots: Tensor) -> None:
    """Write the arguments of a draft, of requests that go on from the round before."""
    requests = len(args)
    _take_args[requests,](
        args, carry, scalars, tokens, roots, len(tokens) // requests,
        ARGS, SCALARS, MAX_NEW_ROWS, tile(SCALARS),
        BEFORE, OWN, TEXT, len(CARRIED),
        NEW, ROOT_AT, TEXT_ROWS, ROOT_TOKEN, LAST, CARRY,
        **options(warps=1),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _take_features(
    args, features, goal, rows, width, line: tl.constexpr, before: tl.constexpr,
    most: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    row = tl.program_id(1)
    past = tl.load(args + request * line + before)
    if past >= 0:
        source = features + (past * most + row) * width
        target = goal + (request * rows + row).to(tl.int64) * width
        for start in range(0, width, step):
            at = start + tl.arange(0, step)
            tl.store(target + at, tl.load(source + at, at < width), at < width)


def take_features(args: Tensor, features: Tensor, hidden_states: Tensor) -> None:
    """Copy features [most requests, MAX_NEW_ROWS, width] of the round before to a draft's rows."""
    requests = len(args)
    rows = len(hidden_states) // requests
    _take_features[requests, rows](
        args, features, hidden_states, rows, features.shape[2], ARGS, BEFORE, MAX_NEW_ROWS, STEP,
        **options(),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "blocks", "each", "cuts", "lines", "whole"])
def _place_trees(
    tokens, depths, seen, scalars, live, inputs, pace, rows, blocks, each, cuts, lines, whole,
    most: tl.constexpr, words: tl.constexpr, count: tl.constexpr,
    first_slot: tl.constexpr, root_at: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wait()
    used = tl.load(live)
    row = tl.program_id(0) * block + tl.arange(0, block)
    owner = row // each
    node = row % each
    mine = (owner < used) & (row < rows)
    chosen = mine | ((whole != 0) & (row < rows))
    first = tl.load(scalars + owner * count + first_slot, mine, 0)
    length = tl.load(scalars + owner * count + root_at, mine, 0)
    token = tl.load(tokens + owner * pace + node, mine, 0)
    depth = tl.load(depths + owner * pace + node, mine, 0)
    bits = tl.load(seen + (owner * most + node) * words, mine, 0)
    tl.store(inputs + row, token, chosen)
    tl.store(inputs + rows + row, depth + length, chosen)
    tl.store(inputs + 2 * rows + row, tl.where(mine, first + length + node, -1), chosen)
    tl.store(inputs + 3 * rows + 6 * blocks + row, bits, chosen)
    owner = row // cuts
    start = row % cuts * lines
    mine = (owner < used) & (row < blocks)
    chosen = mine | ((whole != 0) & (row < blocks))
    first = tl.load(scalars + owner * count + first_slot, mine, 0)
    length = tl.load(scalars + owner * count + root_at, mine, 0)
    held = tl.where(mine, tl.minimum(each - start, lines), 0)
    goal = inputs + 3 * rows + row
    tl.store(goal, first, chosen)
    tl.store(goal + blocks, length, chosen)
    tl.store(goal + 2 * blocks, tl.where(mine, owner * each + start, 0).to(tl.int64), chosen)
    tl.store(goal + 3 * blocks, held.to(tl.int64), chosen)
    tl.store(goal + 4 * blocks, tl.where(mine, each, 0).to(tl.int64), chosen)
    tl.store(goal + 5 * blocks, tl.zeros((block,), tl.int64), chosen)


def place_trees(
    fields: RoundFields,
    scalars: Tensor,
    live: Tensor,
    inputs: Tensor,
    shape: PassShape,
    each: int,
    *,
    whole: bool,
) -> None:
    """Write the inputs of the pass over the pruned trees, of `each` rows a request."""
    assert shape.words == 1
    _place_trees[triton.cdiv(max(shape.rows, shape.blocks), BLOCK),](
        fields.rows.tokens, fields.rows.depths, fields.seen, scalars, live, inputs, fields.pace,
        shape.rows, shape.blocks, each, triton.cdiv(each, shape.tiles.rows),
        shape.tiles.rows, int(whole), fields.seen.shape[1], WORDS, SCALARS,
        FIRST_SLOT, ROOT_AT, BLOCK, **options(),
    )  # fmt: skip


@triton.jit
def mixed(word):
    """Scramble 64 bits, as `rng.mix` does."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@triton.jit(do_not_specialize=["rows", "requests", "each"])
def _noise_keys(
    args, depths, scalars, keys, heat, rows, requests, pace, each,
    line: tl.constexpr, count: tl.constexpr, seed: tl.constexpr, warmth: tl.constexpr,
    root_at: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0) * block + tl.arange(0, block)
    owner = tl.minimum(row // each, requests - 1)
    there = row < rows
    depth = tl.load(depths + owner * pace + row % each, there, 0)
    place = tl.load(scalars + owner * count + root_at, there, 0) + depth + 1
    key = tl.load(args + owner * line + seed, there, 0).to(tl.uint64, bitcast=True)
    golden = tl.full((block,), 0x9E3779B97F4A7C15, tl.uint64)
    key = mixed((key ^ place.to(tl.uint64)) + golden)
    for _ in tl.static_range(3):
        key = mixed(key + golden)
    tl.store(keys + row, key.to(tl.int64, bitcast=True), there)
    bits = tl.load(args + owner * line + warmth, there, 0)
    tl.store(heat + row, bits.to(tl.float64, bitcast=True), there)


def noise_keys(
    args: Tensor, fields: RoundFields, scalars: Tensor, keys: Tensor, heat: Tensor, each: int
) -> None:
    """Noise key [rows] of the token after each row, and the temperature [rows] of its request."""
    rows = len(keys)
    _noise_keys[triton.cdiv(rows, BLOCK),](
        args, fields.rows.depths, scalars, keys, heat, rows, len(args), fields.pace, each,
        ARGS, SCALARS, SEED, TEMPERATURE, ROOT_AT, BLOCK, **options(),
    )  # fmt: skip


@triton.jit(do_not_specialize=["each"])
def _walk_trees(
    target_tokens, tokens, parents, verdicts, live, pace, each, longest: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    if request < tl.load(live):
        away = request * pace
        walk_tree(
            target_tokens + request * each, tokens + away, parents + away, verdicts + away, each,
            longest, size,
        )  # fmt: skip


def walk_trees(fields: RoundFields, target_tokens: Tensor, live: Tensor, each: int) -> None:
    """Follow the target's tokens [rows] from each root; write accepted paths and bonuses."""
    _walk_trees[fields.requests,](
        target_tokens, fields.rows.tokens, fields.rows.parents, fields.field("verdict"), live,
        fields.pace, each, LONGEST, 64, **options(warps=1),
    )  # fmt: skip


@triton.jit
def _keep_paths(
    pool, verdicts, scalars, live, pace, plane, width: tl.constexpr, size: tl.constexpr,
    piece: tl.constexpr, count: tl.constexpr, first_slot: tl.constexpr, root_at: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(2)
    if request < tl.load(live):
        verdict = verdicts + request * pace
        accepted = tl.load(verdict)
        row = tl.arange(0, size)
        node = tl.load(verdict + 2 + row, row < accepted, 0)
        stay = tl.min(tl.where((node != row) & (row < accepted), row, accepted), 0)
        scalars += request * count
        first = tl.load(scalars + first_slot) + tl.load(scalars + root_at)
        shift(
            pool, verdict + 2 + stay, first, first + stay, accepted - stay, plane, width, size,
            piece,
        )  # fmt: skip


def keep_paths(pool: Tensor, fields: RoundFields, scalars: Tensor, live: Tensor) -> None:
    """Move keys and values of accepted paths behind the committed text of their requests."""
    width = pool.shape[3] * pool.shape[4]
    _keep_paths[pool.shape[0], triton.cdiv(width, PIECE), fields.requests](
        pool, fields.field("verdict"), scalars, live, fields.pace, pool.stride(0), width,
        MAX_NEW_ROWS, PIECE, SCALARS, FIRST_SLOT, ROOT_AT, **options(),
    )  # fmt: skip


@triton.jit
def _carry_over(
    verdicts, tokens, scalars, live, carry, pace, count: tl.constexpr, line: tl.constexpr,
    most: tl.constexpr, carried: tl.constexpr, new: tl.constexpr, root_at: tl.constexpr,
    text_rows: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    if request < tl.load(live):
        verdict = verdicts + request * pace
        scalars += request * count
        carry += request * line
        accepted = tl.load(verdict)
        bonus = tl.load(verdict + 1)
        each = tl.arange(0, most)
        node = tl.load(verdict + 3 + each, each < accepted - 1, 0)
        said = tl.load(tokens + request * pace + node, each < accepted - 1, 0)
        tl.store(carry, accepted)
        tl.store(carry + 1, tl.load(scalars + root_at) + accepted)
        tl.store(carry + 2, tl.load(scalars + text_rows) + tl.load(scalars + new))
        tl.store(carry + 3, bonus)
        tl.store(carry + carried + each, tl.where(each == accepted - 1, bonus, said))


def carry_over(fields: RoundFields, scalars: Tensor, live: Tensor, carry: Tensor) -> None:
    """Write what the next round of each request goes on from."""
    _carry_over[fields.requests,](
        fields.field("verdict"), fields.rows.tokens, scalars, live, carry, fields.pace, SCALARS,
        CARRY, MAX_NEW_ROWS, len(CARRIED), NEW, ROOT_AT, TEXT_ROWS, **options(warps=1),
    )  # fmt: skip


@triton.jit(do_not_specialize=["column", "each"])
def _carry_features(
    verdicts, states, live, features, pace, width, wide, column, each,
    most: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    row = tl.program_id(1)
    if request < tl.load(live):
        verdict = verdicts + request * pace
        if row < tl.load(verdict):
            at = tl.arange(0, size)
            source = (request * each + tl.load(verdict + 2 + row)) * width
            values = tl.load(states + source + at, at < width, 0.0)
            goal = (request * most + row).to(tl.int64) * wide + column
            tl.store(features + goal + at, values, at < width)


def carry_features(
    fields: RoundFields, states: Sequence[Tensor], live: Tensor, features: Tensor, each: int
) -> None:
    """Gather the target's states along each accepted path."""
    column = 0
    for layer in states:
        assert layer.is_contiguous()
        _carry_features[fields.requests, min(each, MAX_NEW_ROWS)](
            fields.field("verdict"), layer, live, features, fields.pace, layer.shape[1],
            features.shape[2], column, each, MAX_NEW_ROWS, tile(layer.shape[1]), **options(),
        )  # fmt: skip
        column += layer.shape[1]
