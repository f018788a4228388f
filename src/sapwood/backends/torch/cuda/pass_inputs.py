"""Shapes of passes, and their inputs on the device: one transfer for each pass.

A pass has one of few shapes, so that it is captured once and replayed. Rows and blocks beyond those
in use are padding: they write nothing, and nothing reads them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.attention_tiles import (
    FIELDS,
    LEADS,
    WORD,
    AttentionTiles,
    HeadSizes,
    power_of_two,
    units_of,
)
from sapwood.backends.torch.cuda.kernels.device_limits import LARGEST, shared_limit
from sapwood.backends.torch.cuda.kv_pool import KvSequence
from sapwood.backends.torch.network import WHOLE, MaskBlock, PassInput, visible_nodes
from sapwood.core.array_types import BoolArray, IntArray

# numbers of rows that passes are captured for
LADDER = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
MAX_ROWS = LADDER[-1]
COUNTS = (1, 2, 4, 8, 16)  # ancestor words of a row
RING = 4  # host buffers whose transfers may be under way at once
WAVE = 528  # programs that keep a large GPU busy: four for each multiprocessor
SOME = 24  # programs of blocks from which on two units for each are enough for short texts
WIDE = 128  # head width from which on attention takes one chunk of keys at a time
SHORT = 512  # lengths up to here share a shape


@dataclass(frozen=True, slots=True)
class PassShape:
    """The shape that a pass is captured for."""

    rows: int
    blocks: int
    words: int  # per row
    head: bool  # with logits
    tiles: AttentionTiles
    # rows of prompts follow those of trees: logits of the first `trees` rows, states of all
    trees: int | None = None

    @property
    def logit_rows(self) -> int:
        """Rows whose logits are computed."""
        if not self.head:
            return 0
        return self.rows if self.trees is None else self.trees

    @property
    def keeps_states(self) -> bool:
        """True when the inputs of the output head are kept."""
        return not self.head or self.trees is not None

    @property
    def size(self) -> int:
        """Input numbers of rows and blocks, without the ancestor words."""
        return 3 * self.rows + FIELDS * self.blocks


def step_up(count: int, ladder: Sequence[int]) -> int:
    """The smallest step that is large enough."""
    return next(step for step in ladder if step >= count)


def tiles_for(
    rows: int,
    sessions: int,
    longest: int,
    heads: HeadSizes,
    trees: bool,
    ahead: int = 0,
    *,
    small: bool = False,
) -> AttentionTiles:
    """Attention tiles for this many rows; texts have at most `longest` tokens, and `ahead` rows.

    `small` blocks suit rows of which many are the only ones of their text.

    Large blocks read the keys of a long text less often. If each row of a tree has a program for
    its path, it has as many warps as a block: those of large blocks fill the device with little
    work. Many small blocks fill it alone, and walk the paths themselves.
    """
    group = power_of_two(heads.queries // heads.keys)
    large = (rows > 128 and not trees) or (rows >= 16 * sessions and longest > 2048)
    large = large and not small
    # of queries in a block; smaller devices have too few registers for 64 of wide heads
    wide = heads.width > WIDE  # keys and values of one chunk fill half of a small shared memory
    narrow = heads.width > 64 and shared_limit() < LARGEST
    lines = 16 if wide or not large else 32 if narrow else 64
    each = max(1, lines // group)
    programs = heads.keys * max(sessions, -(-rows // each))
    paths = heads.keys * rows if trees else 0  # programs that walk the paths of single rows
    warps = 8 if large or wide else 4  # fewer would hold more numbers than there are registers
    stages = 1 if wide else 3
    # measured on an H200 at 300 tokens: with more units, adding up their parts takes longer
    if trees and longest <= SHORT and programs >= SOME and programs + paths <= WAVE // 2:
        return AttentionTiles(each, 2, 0, trees, warps, stages)
    alone = trees and not large and paths > WAVE  # a program for each path would take turns
    for lead in () if alone else LEADS:
        units = units_of(longest + ahead, lead)
        if programs * units + min(paths, WAVE // 2) <= WAVE:
            return AttentionTiles(each, units, lead, trees, warps, stages)
    # blocks alone fill the device; the paths of many rows would take one program too long
    return AttentionTiles(each, 2 if trees and large else 1, 0, trees, warps, stages)


def shape_of_one(
    rows: int, length: int, words: int, head: bool, heads: HeadSizes, trees: bool
) -> PassShape:
    """The shape of a pass over one session."""
    return _shape_of_one(rows, bucket(length), words, head, heads, trees)


@cache
def _shape_of_one(
    rows: int, longest: int, words: int, head: bool, heads: HeadSizes, trees: bool
) -> PassShape:
    rows = step_up(rows, LADDER)
    tiles = tiles_for(rows, 1, longest, heads, trees, rows)
    return PassShape(rows, -(-rows // tiles.rows), step_up(words, COUNTS), head, tiles)


class WritableRows(Protocol):
    """Rows of a pass that can write their inputs."""

    @property
    def tokens(self) -> IntArray:
        """Token of each row."""

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""


@dataclass(frozen=True, slots=True)
class SessionRows:
    """Rows of one session in one pass."""

    row: int  # the first of them
    rows: int
    first: int  # first slot of its KV sequence
    length: int
    nodes: int  # of its tree, up to the last of these rows
    chain: bool  # each node is the child of the one before


@dataclass(frozen=True, slots=True)
class PassRows:
    """The rows of one pass, with their inputs on the host."""

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    pieces: Sequence[SessionRows]
    words: IntArray  # [rows, words] ancestors; zeros in chains

    def shape(self, head: bool, heads: HeadSizes) -> PassShape:
        """The smallest shape that holds it."""
        trees = not all(piece.chain for piece in self.pieces)
        words = self.words.shape[1]
        if len(self.pieces) == 1:
            length = self.pieces[0].length + self.pieces[0].nodes - len(self.tokens)
            return shape_of_one(len(self.tokens), length, words, head, heads, trees)
        # one bucket of both, so that few kernels are compiled
        longest = bucket(max(piece.length + piece.nodes for piece in self.pieces))
        tiles = tiles_for(len(self.tokens), len(self.pieces), longest, heads, trees)
        blocks = sum(-(-piece.rows // tiles.rows) for piece in self.pieces)
        return PassShape(
            step_up(len(self.tokens), LADDER),
            step_up(blocks, LADDER),
            step_up(words, COUNTS),
            head,
            tiles,
        )

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        used = len(self.tokens)
        blocks, words = write_rows(shape, host, self.tokens, self.positions, self.slots)
        cuts = [
            (piece, at) for piece in self.pieces for at in range(0, piece.rows, shape.tiles.rows)
        ]
        for block, (piece, at) in enumerate(cuts):
            held = min(shape.tiles.rows, piece.rows - at)
            fields = piece.first, piece.length, piece.row + at, held, piece.nodes, piece.chain
            blocks[:, block] = fields
        words[:used, : self.words.shape[1]] = self.words
        return shape.size + words.size


@dataclass(frozen=True, slots=True)
class SingleTree:
    """One whole tree of at most WORD nodes; a fast path."""

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    first: int  # first slot of its KV sequence
    length: int

    def shape(self, head: bool, heads: HeadSizes) -> PassShape:
        """The smallest shape that holds it."""
        used = len(self.tokens)
        return shape_of_one(used, self.length, 1, head, heads, trees=used > 1)

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        rows = shape.rows
        used = len(self.tokens)
        each = shape.tiles.rows
        blank = [0] * (rows - used)
        start = self.first + self.length
        cuts = range(0, each * shape.blocks, each)
        chain = int(self.depths[-1]) == used - 1
        numbers = [
            *self.tokens.tolist(), *blank,
            *(self.depths + self.length).tolist(), *blank,
            *range(start, start + used), *([-1] * (rows - used)),
            *([self.first] * shape.blocks), *([self.length] * shape.blocks), *cuts,
            *(min(max(used - at, 0), each) for at in cuts), *([used] * shape.blocks),
            *([int(chain)] * shape.blocks),
        ]  # fmt: skip
        numbers += ancestor_words(self.parents.tolist()) + [0] * (rows * shape.words - used)
        host[: len(numbers)] = numbers
        return len(numbers)


@dataclass(frozen=True, slots=True)
class RootRows:
    """The roots of many sessions, one row each; a fast path of plain decoding in batches."""

    tokens: IntArray
    firsts: IntArray  # first slot of each KV sequence
    lengths: IntArray

    def shape(self, head: bool, heads: HeadSizes) -> PassShape:
        """The smallest shape that holds them."""
        return _shape_of_roots(
            step_up(len(self.tokens), LADDER), bucket(int(self.lengths.max())), head, heads
        )

    def write(self, shape: PassShape, host: IntArray) -> int:
        """Write the inputs of the pass to a buffer; the number of words written."""
        used = len(self.tokens)
        slots = self.firsts + self.lengths
        blocks, words = write_rows(shape, host, self.tokens, self.lengths, slots)
        blocks[0, :used] = self.firsts
        blocks[1, :used] = self.lengths
        blocks[2, :used] = np.arange(used)
        blocks[3:, :used] = 1  # one row, one node, a chain
        return shape.size + words.size


def write_rows(
    shape: PassShape, host: IntArray, tokens: IntArray, positions: IntArray, slots: IntArray
) -> tuple[IntArray, IntArray]:
    """Write rows to an emptied buffer; its parts for blocks and words, which hold zeros."""
    rows = shape.rows
    used = len(tokens)
    size = shape.size + rows * shape.words
    host[:size] = 0
    host[:used] = tokens
    host[rows : rows + used] = positions
    host[2 * rows : 3 * rows] = -1
    host[2 * rows : 2 * rows + used] = slots
    blocks = host[3 * rows : shape.size].reshape(FIELDS, shape.blocks)
    return blocks, host[shape.size : size].reshape(rows, shape.words)


@cache
def _shape_of_roots(rows: int, longest: int, head: bool, heads: HeadSizes) -> PassShape:
    tiles = tiles_for(rows, rows, longest, heads, trees=False, ahead=1)
    return PassShape(rows, rows, 1, head, tiles)


def ancestor_words(parents: Sequence[int]) -> list[int]:
    """Bit sets of each node's ancestors, itself included, as signed numbers; at most WORD nodes."""
    words: list[int] = []
    for node, parent in enumerate(parents):
        words.append((words[parent] if node else 0) | 1 << node)
    return (
        words
        if len(words) < WORD
        else [word - (1 << WORD) if word >> (WORD - 1) else word for word in words]
    )


def bucket(length: int) -> int:
    """Lengths that share a shape: powers of two."""
    return max(SHORT, 1 << (length - 1).bit_length()) if length else SHORT


def is_chain(block: MaskBlock) -> bool:
    """True when each node is the child of the one before, as in prompts."""
    return int(block.depths[-1]) == len(block.depths) - 1


def row_words(block: MaskBlock) -> IntArray:
    """Ancestor words of each row, [rows, words]; a chain needs none."""
    if is_chain(block):
        return np.zeros((block.rows, 1), np.int64)
    return pack(visible_nodes(block, WHOLE))


def pack(mask: BoolArray) -> IntArray:
    """A mask [rows, nodes] as bits, [rows, words]."""
    rows, nodes = mask.shape
    count = -(-nodes // WORD)
    wide = np.zeros((rows, count * WORD), bool)
    wide[:, :nodes] = mask
    words: IntArray = np.packbits(wide, axis=1, bitorder="little").view(np.int64)
    return words


def split_passes(rows: PassInput) -> list[PassRows]:
    """The passes over these rows, in order; a row's ancestors are in its own or an earlier pass."""
    words = [row_words(block) for block in rows.blocks]
    most = max(part.shape[1] for part in words)
    packed = np.concatenate([widen(part, most) for part in words])
    slots = np.concatenate(
        [sequence(span).first + span.start + np.arange(span.rows) for span in rows.spans]
    )
    positions = rows.positions
    found = []
    for start in range(0, len(rows.tokens), MAX_ROWS):
        part = slice(start, start + MAX_ROWS)
        pieces = session_rows(rows, start, start + MAX_ROWS)
        last = max(1 if piece.chain else -(-piece.nodes // WORD) for piece in pieces)
        found.append(
            PassRows(rows.tokens[part], positions[part], slots[part], pieces, packed[part, :last])
        )
    return found


def widen(words: IntArray, count: int) -> IntArray:
    """Words padded with zeros to `count` a row, [rows, count]."""
    if words.shape[1] == count:
        return words
    wide = np.zeros((len(words), count), np.int64)
    wide[:, : words.shape[1]] = words
    return wide


def session_rows(rows: PassInput, start: int, stop: int) -> list[SessionRows]:
    """The rows from `start` to `stop`, by session."""
    ends = itertools.accumulate(span.rows for span in rows.spans)
    found = []
    for block, span, end in zip(rows.blocks, rows.spans, ends, strict=True):
        first, last = max(end - span.rows, start), min(end, stop)
        if first < last:
            nodes = block.since + last - (end - span.rows)
            found.append(
                SessionRows(
                    first - start,
                    last - first,
                    sequence(span).first,
                    block.length,
                    nodes,
                    is_chain(block),
                )
            )
    return found


def sequence(span: Any) -> KvSequence:
    """The KV sequence of a span."""
    slots: KvSequence = span.slots
    return slots


class PassInputs:
    """Inputs of a pass in one buffer on the device, and a ring of pinned buffers on the host."""

    def __init__(self, device: torch.device) -> None:
        size = 3 * MAX_ROWS + FIELDS * MAX_ROWS + MAX_ROWS * COUNTS[-1]
        cuda = device.type == "cuda"
        self.cuda = cuda
        self.on_device = torch.zeros(size, dtype=torch.int64, device=device)
        self.host = [
            torch.zeros(size, dtype=torch.int64, pin_memory=cuda)
            for _ in range(RING if cuda else 1)
        ]
        self.writable = [copy.numpy() for copy in self.host]
        self.sent: list[Any] = [None] * len(self.host)  # when the device had read each copy
        self.ring_index = 0

    def send(self, load: WritableRows, shape: PassShape) -> None:
        """Start the transfer."""
        self.ring_index = (self.ring_index + 1) % len(self.host)
        if self.sent[self.ring_index] is not None:
            self.sent[self.ring_index].synchronize()
        host = self.host[self.ring_index]
        size = load.write(shape, self.writable[self.ring_index])
        self.on_device[:size].copy_(host[:size], non_blocking=True)
        if self.cuda:
            cuda: Any = torch.cuda  # parts of it have no types
            event = self.sent[self.ring_index] or cuda.Event()
            event.record()
            self.sent[self.ring_index] = event

    def parts(self, shape: PassShape) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Views: tokens, positions, slots, blocks [FIELDS, blocks], words [rows, words]."""
        rows, buffer = shape.rows, self.on_device
        words = buffer[shape.size : shape.size + rows * shape.words]
        return (
            buffer[:rows],
            buffer[rows : 2 * rows],
            buffer[2 * rows : 3 * rows],
            buffer[3 * rows : shape.size].view(FIELDS, shape.blocks),
            words.view(rows, shape.words),
        )


class PendingMove(NamedTuple):
    """Nodes of the last accepted path that still lie in the slots where their tree was scored."""

    length: int  # committed tokens when it was scored
    stay: int  # nodes from the root on that need no move
    stop: int  # nodes of the path


NOTHING = PendingMove(0, 0, 0)


class PassArgs:
    """Arguments of a pass over a tree on the device, transferred by the pass itself.

    First slot of the KV sequence, committed tokens and rows; then the `PendingMove` to run first.
    """

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # parts of it have no types
        pinned = device.type == "cuda"
        self.on_device = torch.zeros(8, dtype=torch.int64, device=device)
        self.host = torch.zeros(8, dtype=torch.int64, pin_memory=pinned)
        self.host_array = self.host.numpy()
        self.read: Any = cuda.Event() if pinned else None  # the last pass has read them

    def write(self, first: int, length: int, rows: int, moved: PendingMove) -> None:
        """Write the arguments of the next pass, once the last pass has read its own."""
        if self.read is not None:
            self.read.synchronize()
        self.host_array[:6] = first, length, rows, *moved

    def send(self) -> None:
        """Start the transfer; a part of the pass."""
        self.on_device.copy_(self.host, non_blocking=True)

    def record_sent(self) -> None:
        """Record that the pass which reads them was launched."""
        if self.read is not None:
            self.read.record()
