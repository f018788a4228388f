"""Steps of the verification as Triton kernels; `device_verifier` has the same in torch."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import LONGEST, RoundBuffer
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.kernels.pointwise import best_tokens
from sapwood.backends.torch.cuda.kernels.topk import tile

PIECE = 2048  # logits that one program looks at


@triton.jit
def gumbel_noise(key, ids):
    """Gumbel noise of these tokens, float64; a hash of the key and the token."""
    words = (ids + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key.to(tl.uint64, bitcast=True)
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    words = words ^ (words >> 31)
    uniform = ((words >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(uniform))


@triton.jit
def _noise(keys, out, vocab, piece: tl.constexpr):
    wait()
    level = tl.program_id(0)
    ids = tl.program_id(1) * piece + tl.arange(0, piece)
    made = gumbel_noise(tl.load(keys + level), ids)
    tl.store(out + level.to(tl.int64) * vocab + ids, made, ids < vocab)


def noise(keys: Tensor, vocab: int, out: Tensor) -> None:
    """Gumbel noise of each key, [keys, vocab] float64."""
    _noise[len(keys), triton.cdiv(vocab, 512)](keys, out, vocab, 512, **options())


@triton.jit
def keep_peak(chances, at, values, tokens, place, vocab):
    """Write the largest number of a piece and its token; the lowest id wins a tie."""
    peak = tl.max(chances, 0)
    tl.store(values + place, peak)
    tl.store(tokens + place, tl.min(tl.where(chances == peak, at, vocab), 0).to(tl.int64))


@triton.jit
def _keyed_draw(
    logits, gumbel, depths, temperature, values, tokens, vocab, pieces, size: tl.constexpr
):
    wait()
    row = tl.program_id(0)
    piece = tl.program_id(1)
    at = piece * size + tl.arange(0, size)
    there = at < vocab
    depth = tl.load(depths + row)
    raw = tl.load(logits + row.to(tl.int64) * vocab + at, there, float("-inf")).to(tl.float64)
    chances = raw / tl.load(temperature) + tl.load(gumbel + depth * vocab + at, there, 0.0)
    keep_peak(chances, at, values, tokens, row * pieces + piece, vocab)


@triton.jit
def _draw_rows(logits, keys, temperatures, values, tokens, vocab, pieces, size: tl.constexpr):
    wait()
    row = tl.program_id(0)
    piece = tl.program_id(1)
    at = piece * size + tl.arange(0, size)
    there = at < vocab
    temperature = tl.load(temperatures + row)
    raw = tl.load(logits + row.to(tl.int64) * vocab + at, there, float("-inf")).to(tl.float64)
    chances = raw
    if temperature > 0:
        chances = raw / temperature + gumbel_noise(tl.load(keys + row), at)
    keep_peak(chances, at, values, tokens, row * pieces + piece, vocab)


@triton.jit(do_not_specialize=["pieces"])
def _best(values, tokens, target_tokens, pieces, size: tl.constexpr):
    wait()
    row = tl.program_id(0)
    at = tl.arange(0, size)
    there = at < pieces
    chances = tl.load(values + row * pieces + at, there, float("-inf"))
    ids = tl.load(tokens + row * pieces + at, there, 0x7FFFFFFF)
    peak = tl.max(chances, 0)
    tl.store(target_tokens + row, tl.min(tl.where(there & (chances == peak), ids, 0x7FFFFFFF), 0))


def keyed_draw(
    logits: Tensor, gumbel: Tensor, depths: Tensor, temperature: Tensor, target_tokens: Tensor
) -> None:
    """The keyed draw of each row, with the noise of its depth."""
    rows, vocab = logits.shape
    pieces = triton.cdiv(vocab, PIECE)
    values = torch.empty(rows, pieces, dtype=torch.float64, device=logits.device)
    tokens = torch.empty(rows, pieces, dtype=torch.int64, device=logits.device)
    _keyed_draw[rows, pieces](
        logits, gumbel, depths, temperature, values, tokens, vocab, pieces, PIECE, **options()
    )
    _best[rows,](values, tokens, target_tokens, pieces, tile(pieces), **options(warps=1))


def draw_rows(logits: Tensor, keys: Tensor, temperatures: Tensor, target_tokens: Tensor) -> None:
    """The keyed draw of each row, with a key and a temperature of its own; 0: the best token."""
    rows, vocab = logits.shape
    pieces = triton.cdiv(vocab, PIECE)
    values = torch.empty(rows, pieces, dtype=torch.float64, device=logits.device)
    tokens = torch.empty(rows, pieces, dtype=torch.int64, device=logits.device)
    _draw_rows[rows, pieces](
        logits, keys, temperatures, values, tokens, vocab, pieces, PIECE, **options()
    )
    _best[rows,](values, tokens, target_tokens, pieces, tile(pieces), **options(warps=1))


def best(logits: Tensor, target_tokens: Tensor) -> None:
    """The best token of each row; the lowest id wins a tie."""
    best_tokens(logits, target_tokens[: len(logits)])


@triton.jit
def _gather_features(verdict, states, out, width, wide, column, tile_w: tl.constexpr):
    wait()
    row = tl.program_id(0)
    at = tl.arange(0, tile_w)
    if row < tl.load(verdict):
        node = tl.load(verdict + 2 + row)
        values = tl.load(states + node * width + at, at < width, 0.0)
        tl.store(out + row * wide + column + at, values, at < width)


def gather_features(round_buffer: RoundBuffer, states: Sequence[Tensor]) -> None:
    """Gather the target's states along the accepted path for the next draft."""
    out, column = round_buffer.hidden_states, 0
    assert out is not None
    for layer in states:
        assert layer.is_contiguous()
        _gather_features[len(out),](
            round_buffer.field("verdict"), layer, out, layer.shape[1], out.shape[1], column,
            tile(layer.shape[1]),
            **options(),
        )  # fmt: skip
        column += layer.shape[1]


@triton.jit
def walk_tree(
    target_tokens, tokens, parents, verdict, rows, longest: tl.constexpr, size: tl.constexpr
):
    """Follow the target's tokens from the root of one tree; write the path and the bonus."""
    each = tl.arange(0, size)
    there = each < rows
    token = tl.load(tokens + each, there, -1)
    up = tl.load(parents + each, there, -2)
    # the target's token after each row's parent
    word = tl.load(target_tokens + tl.maximum(up, 0), there & (up >= 0), -2)
    taken = there & (up >= 0) & (token == word)
    node = tl.full((), 0, tl.int32)
    count = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going > 0:
        tl.store(verdict + 2 + count, node)
        count += 1
        found = tl.min(tl.where(taken & (up == node), each, size), 0)
        going = tl.where((found < size) & (count < longest), 1, 0)
        node = tl.where(going > 0, found, node)
    tl.store(verdict, count)
    tl.store(verdict + 1, tl.load(target_tokens + node))


@triton.jit(do_not_specialize=["rows"])
def _walk(target_tokens, tokens, parents, verdict, rows, longest: tl.constexpr, size: tl.constexpr):
    wait()
    walk_tree(target_tokens, tokens, parents, verdict, rows, longest, size)


def walk(round_buffer: RoundBuffer, target_tokens: Tensor, rows: int) -> None:
    """Follow the target's tokens from the root; write the accepted path and the bonus."""
    tokens, parents = round_buffer.rows.tokens, round_buffer.rows.parents
    verdict = round_buffer.field("verdict")
    _walk[1,](
        target_tokens, tokens, parents, verdict, rows, LONGEST, tile(rows), **options(warps=1)
    )
