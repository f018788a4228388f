"""Pointwise kernels between matrix products: norms, gates, embeddings, the best tokens."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.exact_sum import whole
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.kernels.prenorm import NormScale, PrenormRows

PIECE = 2048  # logits that one program looks at


@triton.jit
def _normalise(x, norm, out, width, eps, lift, tile: tl.constexpr):
    wait()
    row = tl.program_id(0)
    columns = tl.arange(0, tile)
    inside = columns < width
    wide = tl.load(x + row * width + columns, inside, 0.0).to(tl.float32)
    size = lift * tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    scale = tl.load(norm + columns, inside, 0.0).to(tl.float32)
    tl.store(out + row * width + columns, (wide * size * scale).to(out.dtype.element_ty), inside)


def normalise(x: Tensor, scale: NormScale, out: Tensor) -> Tensor:
    """RMS norm of each row of x [m, width]; returns `out`."""
    m, width = x.shape
    tile = triton.next_power_of_2(width)
    _normalise[m,](
        x, scale.norm, out, width, scale.eps, scale.lift, tile, **options(8 if tile > 2048 else 4)
    )
    return out


@triton.jit
def leave(made, norm, scaled, squares, row, columns, inside, width):
    """Write the scaled row and its squares, for its norm."""
    wide = made.to(tl.float32)
    scale = tl.load(norm + columns, inside, 0.0).to(tl.float32)
    tl.store(scaled + row * width + columns, (wide * scale).to(made.dtype), inside)
    tl.store(squares + row, tl.sum(whole(wide * wide, made.dtype), 0))


@triton.jit
def _prepare(x, norm, scaled, squares, width, tile: tl.constexpr):
    wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, tile)
    inside = columns < width
    leave(
        tl.load(x + row * width + columns, inside, 0.0),
        norm,
        scaled,
        squares,
        row,
        columns,
        inside,
        width,
    )


def prepare(stream: PrenormRows) -> None:
    """Write scaled rows and squares, for their norm."""
    m, width = stream.x.shape
    tile = triton.next_power_of_2(width)
    norm_buffers = stream.norm_buffers
    _prepare[m,](
        stream.x, stream.scale.norm, norm_buffers.scaled, norm_buffers.squares,
        width, tile,
        **options(8 if tile > 2048 else 4)
    )  # fmt: skip
    stream.parts = 1


@triton.jit
def _add_normed(
    made, base, after, x, norm, scaled, squares, width, eps, leaves: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, tile)
    inside = columns < width
    place = row * width + columns
    wide = tl.load(made + place, inside, 0.0).to(tl.float32)
    size = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    weight = tl.load(after + columns, inside, 0.0).to(tl.float32)
    normed = (wide * size * weight).to(x.dtype.element_ty)
    before = tl.load(base + place, inside, 0.0).to(tl.float32)
    total = (before + normed.to(tl.float32)).to(x.dtype.element_ty)
    tl.store(x + place, total, inside)
    if leaves:
        leave(total, norm, scaled, squares, row, columns, inside, width)


def add_normed(
    made: Tensor,  # [m, width], outputs of a sublayer
    after: Tensor,  # [width], weight of their norm
    residual: Tensor,  # [m, width]
    out: PrenormRows,  # [m, width], not the residual
    *,
    leaves: bool = True,  # something for the norm that follows
) -> None:
    """The residual with the norm of a sublayer's outputs added; rows prepared for the next norm."""
    m, width = made.shape
    tile = triton.next_power_of_2(width)
    norm_buffers = out.norm_buffers
    _add_normed[m,](
        made, residual, after, out.x, out.scale.norm, norm_buffers.scaled, norm_buffers.squares,
        width, out.scale.eps, leaves, tile, **options(8 if tile > 2048 else 4),
    )  # fmt: skip
    out.parts = int(leaves)


@triton.jit
def _embed_rows(
    table, tokens, before, x, norm, scaled, squares, angles, positions, turns, width, turn, pace,
    scale: tl.constexpr, tables: tl.constexpr, tile: tl.constexpr, tile_t: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, tile)
    each = tl.arange(0, tile_t)
    inside = columns < width
    token = tl.load(tokens + row)
    token = tl.where(token < 0, tl.load(before - 1 - token, token < 0, 0), token)
    at = tl.load(positions + row)
    made = tl.load(table + token * width + columns, inside, 0.0)
    if scale != 1.0:
        made = (made.to(tl.float32) * scale).to(made.dtype)
    tl.store(x + row * width + columns, made, inside)
    for one in tl.static_range(tables):
        angle = tl.load(angles + (at * tables + one) * turn + each, each < turn, 0.0)
        tl.store(turns + one * pace + row * turn + each, angle, each < turn)
    leave(made, norm, scaled, squares, row, columns, inside, width)


def embed_rows(
    stream: PrenormRows,  # [m, width]
    table: Tensor,  # [vocab, width]
    tokens: Tensor,  # [m]; -1 - i is the token `before` has at i
    before: Tensor,  # [m] next tokens of the rows of the last pass
    angles: Tensor,  # [positions, tables * head width] float32
    positions: Tensor,  # [m]
    turns: Tensor,  # [tables, m, head width] float32, out
    scale: float = 1.0,  # of the embedding, as the number format has it
) -> None:
    """Embed tokens, prepare rows for their norm, and gather the angles of their positions."""
    m, width = stream.x.shape
    tile = triton.next_power_of_2(width)
    norm_buffers = stream.norm_buffers
    tables, _, turn = turns.shape
    _embed_rows[m,](
        table, tokens, before, stream.x, stream.scale.norm,
        norm_buffers.scaled, norm_buffers.squares,
        angles, positions, turns, width, turn, turns.stride(0), scale, tables,
        tile, triton.next_power_of_2(turn), **options(8 if tile > 2048 else 4),
    )  # fmt: skip
    stream.parts = 1


@triton.jit
def _peaks(logits, values, tokens, vocab, pieces, tile: tl.constexpr):
    wait()
    row = tl.program_id(0)
    piece = tl.program_id(1)
    at = piece * tile + tl.arange(0, tile)
    read = tl.load(logits + row.to(tl.int64) * vocab + at, at < vocab, float("-inf")).to(tl.float32)
    value, index = tl.max(read, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(values + row * pieces + piece, value)
    tl.store(tokens + row * pieces + piece, piece * tile + index)


@triton.jit
def _peak(values, tokens, best, pieces, tile: tl.constexpr):
    wait()
    row = tl.program_id(0)
    at = tl.arange(0, tile)
    read = tl.load(values + row * pieces + at, at < pieces, float("-inf"))
    index = tl.argmax(read, 0, tie_break_left=True)
    tl.store(best + row, tl.load(tokens + row * pieces + index).to(tl.int64))


def best_tokens(logits: Tensor, best: Tensor) -> Tensor:
    """Best token of each row of logits [m, vocab], of equals the lowest; returns `best` [m]."""
    m, vocab = logits.shape
    pieces = triton.cdiv(vocab, PIECE)
    values = torch.empty(m, pieces, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(m, pieces, dtype=torch.int32, device=logits.device)
    _peaks[m, pieces](logits, values, tokens, vocab, pieces, PIECE, **options())
    _peak[m,](values, tokens, best, pieces, max(16, triton.next_power_of_2(pieces)), **options())
    return best
