"""The shape of a pass, and what the host tells the device about it: everything in one transfer.

A pass has one of few shapes, so that it can be captured once and replayed. Rows and blocks beyond those
in use are empty: they write nothing, and nobody reads them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from sapwood.arrays import BoolArray, IntArray
from sapwood.backends.torch.fused.attention import FIELDS, WORD, Cut
from sapwood.backends.torch.fused.pool import Seat
from sapwood.backends.torch.fused.qkv import Heads
from sapwood.backends.torch.mask import WHOLE, Block, tail
from sapwood.backends.torch.network import Rows

LADDER = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)  # rows of a pass
MOST = LADDER[-1]
COUNTS = (1, 2, 4, 8, 16)  # ancestor words of a row
RING = 4  # passes that may be on their way to the device at once
WAVE = 264  # programs that keep a large GPU busy: two for each multiprocessor
CALM = 64  # programs with which a device is far from busy: then it pays to have more
FEW = 8  # programs whose findings are merged in no time
SHORT = 512  # lengths up to here share a shape


@dataclass(frozen=True, slots=True)
class Shape:
    """What a captured pass is made for."""

    rows: int
    blocks: int
    words: int  # per row
    head: bool  # with logits
    cut: Cut

    @property
    def size(self) -> int:
        """Numbers that describe rows and blocks, without the ancestor words."""
        return 3 * self.rows + FIELDS * self.blocks


def step_up(count: int, ladder: Sequence[int]) -> int:
    """The smallest step that is large enough."""
    return next(step for step in ladder if step >= count)


def cut_for(rows: int, sessions: int, longest: int, heads: Heads) -> Cut:
    """How attention is best cut for so many rows, when the longest text has so many slots."""
    group = triton.next_power_of_2(heads.queries // heads.keys)
    large = (longest > 2048 and rows >= 16 * sessions) or rows > 128
    each = max(1, (64 if large else 16) // group)
    programs = heads.keys * max(sessions, -(-rows // each))
    splits = 1
    while splits < 32 and splits * programs < WAVE and 2 * splits * share(programs, splits) <= longest:
        splits *= 2
    if heads.width > 64:
        return Cut(each, splits)
    once = longest == 256 * splits and not large  # all that a program walks, asked for before the queries are there
    return Cut(each, splits, step=256 if once else 128, stages=2)


def share(programs: int, splits: int) -> int:
    """Committed slots that a program should at least walk, where so many programs would be split in so many."""
    if programs > CALM or splits >= FEW:
        return 512
    return 128 if splits * programs <= CALM else 256


def shape_of_one(rows: int, length: int, words: int, head: bool, heads: Heads) -> Shape:
    """The shape of a pass over one session."""
    return _shape_of_one(rows, bucket(length), words, head, heads)


@cache
def _shape_of_one(rows: int, longest: int, words: int, head: bool, heads: Heads) -> Shape:
    cut, rows = cut_for(rows, 1, longest, heads), step_up(rows, LADDER)
    return Shape(rows, -(-rows // cut.rows), step_up(words, COUNTS), head, cut)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one session in one pass."""

    row: int  # where they begin
    rows: int
    first: int  # slot of the seat
    length: int
    nodes: int  # of its tree, up to the last of these rows


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of one pass, as the host describes them."""

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    pieces: Sequence[Piece]
    words: IntArray  # [kinds, rows, words]

    def shape(self, head: bool, heads: Heads) -> Shape:
        """The smallest shape that holds it."""
        longest, words = max(piece.length for piece in self.pieces), self.words.shape[2]
        if len(self.pieces) == 1:
            return shape_of_one(len(self.tokens), longest, words, head, heads)
        cut = cut_for(len(self.tokens), len(self.pieces), bucket(longest), heads)
        blocks = sum(-(-piece.rows // cut.rows) for piece in self.pieces)
        return Shape(step_up(len(self.tokens), LADDER), step_up(blocks, LADDER), step_up(words, COUNTS), head, cut)

    def write(self, shape: Shape, host: IntArray) -> int:
        """Describe the pass in a buffer; how many numbers that took."""
        rows, used = shape.rows, len(self.tokens)
        size = shape.size + len(self.words) * rows * shape.words
        host[:size] = 0
        host[:used] = self.tokens
        host[rows : rows + used] = self.positions
        host[2 * rows : 3 * rows] = -1
        host[2 * rows : 2 * rows + used] = self.slots
        blocks = host[3 * rows : shape.size].reshape(FIELDS, shape.blocks)
        cuts = [(piece, at) for piece in self.pieces for at in range(0, piece.rows, shape.cut.rows)]
        for block, (piece, at) in enumerate(cuts):
            held = min(shape.cut.rows, piece.rows - at)
            blocks[:, block] = piece.first, piece.length, piece.row + at, held, piece.nodes
        words = host[shape.size : size].reshape(len(self.words), rows, shape.words)
        words[:, :used, : self.words.shape[2]] = self.words
        return size


@dataclass(frozen=True, slots=True)
class Lone:
    """A whole tree of at most WORD nodes as the only one of a pass; no window is shorter than the tree is deep."""

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    first: int  # slot of the seat
    length: int
    kinds: int  # of ancestor words

    def shape(self, head: bool, heads: Heads) -> Shape:
        """The smallest shape that holds it."""
        return shape_of_one(len(self.tokens), self.length, 1, head, heads)

    def write(self, shape: Shape, host: IntArray) -> int:
        """Describe the pass in a buffer; how many numbers that took."""
        rows, used, each = shape.rows, len(self.tokens), shape.cut.rows
        blank, start = [0] * (rows - used), self.first + self.length
        cuts = range(0, each * shape.blocks, each)
        numbers = [
            *self.tokens.tolist(), *blank,
            *(self.depths + self.length).tolist(), *blank,
            *range(start, start + used), *([-1] * (rows - used)),
            *([self.first] * shape.blocks), *([self.length] * shape.blocks), *cuts,
            *(min(max(used - at, 0), each) for at in cuts), *([used] * shape.blocks),
        ]  # fmt: skip
        words = ancestor_words(self.parents.tolist()) + [0] * (rows * shape.words - used)
        numbers += words * self.kinds
        host[: len(numbers)] = numbers
        return len(numbers)


def ancestor_words(parents: Sequence[int]) -> list[int]:
    """The bits of the nodes on each node's path, itself included; at most WORD nodes, as signed numbers."""
    words: list[int] = []
    for node, parent in enumerate(parents):
        words.append((words[parent] if node else 0) | 1 << node)
    return words if len(words) < WORD else [word - (1 << WORD) if word >> (WORD - 1) else word for word in words]


def bucket(length: int) -> int:
    """Lengths that share a shape: powers of two."""
    return max(SHORT, 1 << (length - 1).bit_length()) if length else SHORT


def seen(block: Block, window: int) -> BoolArray:
    """Which nodes each row sees, [rows, nodes]; a chain, as prompts are, in one step."""
    rows, nodes = np.arange(block.since, len(block.parents)), np.arange(len(block.parents))
    if not np.array_equal(block.depths, nodes):
        return tail(block, window)
    mask = nodes[None, :] <= rows[:, None]
    return mask & (nodes[None, :] > rows[:, None] - window) if window != WHOLE else mask


def pack(mask: BoolArray) -> IntArray:
    """The bits of a mask [rows, nodes], [rows, words]."""
    rows, nodes = mask.shape
    count = -(-nodes // WORD)
    wide = np.zeros((rows, count * WORD), bool)
    wide[:, :nodes] = mask
    words: IntArray = np.packbits(wide, axis=1, bitorder="little").view(np.int64)
    return words


def loads(rows: Rows, windows: Sequence[int]) -> list[Load]:
    """The passes that run these rows, in order; a row's ancestors are in its own pass or in one before."""
    words = [[pack(seen(block, window)) for block in rows.blocks] for window in windows]
    most = max(part.shape[1] for part in words[0])
    packed = np.stack([np.concatenate([widen(part, most) for part in kind]) for kind in words])
    slots = np.concatenate([seat(span).first + span.start + np.arange(span.rows) for span in rows.spans])
    positions, found = rows.positions, []
    for start in range(0, len(rows.tokens), MOST):
        part = slice(start, start + MOST)
        pieces = pieces_of(rows, start, start + MOST)
        last = max(-(-piece.nodes // WORD) for piece in pieces)
        found.append(Load(rows.tokens[part], positions[part], slots[part], pieces, packed[:, part, :last]))
    return found


def widen(words: IntArray, count: int) -> IntArray:
    """The same words with zeros behind, [rows, count]."""
    return np.pad(words, ((0, 0), (0, count - words.shape[1])))


def pieces_of(rows: Rows, start: int, stop: int) -> list[Piece]:
    """What the rows from `start` to `stop` have of each session."""
    ends = itertools.accumulate(span.rows for span in rows.spans)
    found = []
    for block, span, end in zip(rows.blocks, rows.spans, ends, strict=True):
        first, last = max(end - span.rows, start), min(end, stop)
        if first < last:
            nodes = block.since + last - (end - span.rows)
            found.append(Piece(first - start, last - first, seat(span).first, block.length, nodes))
    return found


def seat(span: Any) -> Seat:
    """The seat that a span lies in."""
    slots: Seat = span.slots
    return slots


class Inbox:
    """The description of a pass on the device, in one buffer, and the host's copies of it in turn."""

    def __init__(self, kinds: int, device: torch.device) -> None:
        size = 3 * MOST + FIELDS * MOST + kinds * MOST * COUNTS[-1]
        cuda = device.type == "cuda"
        self.kinds, self.cuda = kinds, cuda
        self.there = torch.zeros(size, dtype=torch.int64, device=device)
        self.here = [torch.zeros(size, dtype=torch.int64, pin_memory=cuda) for _ in range(RING if cuda else 1)]
        self.writable = [copy.numpy() for copy in self.here]
        self.sent: list[Any] = [None] * len(self.here)  # when the device had read each copy
        self.turn = 0

    def send(self, load: Load | Lone, shape: Shape) -> None:
        """Start the transfer."""
        self.turn = (self.turn + 1) % len(self.here)
        if self.sent[self.turn] is not None:
            self.sent[self.turn].synchronize()
        host = self.here[self.turn]
        size = load.write(shape, self.writable[self.turn])
        self.there[:size].copy_(host[:size], non_blocking=True)
        if self.cuda:
            cuda: Any = torch.cuda  # parts of it have no types
            event = self.sent[self.turn] or cuda.Event()
            event.record()
            self.sent[self.turn] = event

    def parts(self, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Tokens, positions and slots of rows, blocks [FIELDS, blocks], and words [kinds, rows, words]."""
        rows, there = shape.rows, self.there
        words = there[shape.size : shape.size + self.kinds * rows * shape.words]
        return (
            there[:rows],
            there[rows : 2 * rows],
            there[2 * rows : 3 * rows],
            there[3 * rows : shape.size].view(FIELDS, shape.blocks),
            words.view(self.kinds, rows, shape.words),
        )
