"""Shapes of passes, and what the host writes about their rows: tokens, positions, slots, blocks and ancestor words."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda import pass_inputs
from sapwood.backends.torch.cuda.kernels.attention_tiles import (
    FIELDS,
    LEADS,
    HeadSizes,
    power_of_two,
    units_of,
)
from sapwood.backends.torch.cuda.pass_inputs import (
    COUNTS,
    LADDER,
    MAX_ROWS,
    SHORT,
    WAVE,
    PassInputs,
    PassRows,
    RootRows,
    SingleTree,
    ancestor_words,
    bucket,
    is_chain,
    pack,
    row_words,
    session_rows,
    shape_of_one,
    split_passes,
    step_up,
    tiles_for,
    widen,
)
from sapwood.backends.torch.kv_slots import RowSpan
from sapwood.backends.torch.network import WHOLE, MaskBlock, PassInput, visible_nodes
from sapwood.core.array_types import BoolArray, IntArray
from sapwood.core.tree import Tree

HEADS = HeadSizes(4, 2, 16)
SIZES = (
    HEADS,
    HeadSizes(32, 8, 128),
    HeadSizes(9, 3, 64),
    HeadSizes(2, 2, 32),
    HeadSizes(7, 1, 96),
)


def random_tree(seed: int, nodes: int) -> Tree:
    noise = np.random.default_rng(seed)
    tree = Tree(int(noise.integers(50)))
    while len(tree) < nodes:
        parent = int(noise.integers(max(0, len(tree) - 5), len(tree)))
        tree.add(parent, int(noise.integers(50)), 0.5, sampled=True)
    return tree


def chain(length: int, nodes: int, since: int = 0) -> MaskBlock:
    each = np.arange(nodes)
    return MaskBlock(length, each - 1, each, since)


def span(first: int, start: int, rows: int) -> RowSpan:
    """Rows in a seat whose first slot is `first`."""
    slots: Any = SimpleNamespace(first=first)
    return RowSpan(slots, start, rows)


def bits_of(words: IntArray, nodes: int) -> BoolArray:
    """Packed words [..., words] as a mask [..., nodes], by arithmetic."""
    bits = (words[..., None] >> np.arange(64)) & 1
    return bits.reshape(*words.shape[:-1], -1)[..., :nodes].astype(bool)


# ------------------------------------------------------------------------------------------- steps
def test_a_step_is_the_smallest_that_holds_the_count() -> None:
    for count in range(1, MAX_ROWS + 1):
        step = step_up(count, LADDER)
        assert step >= count
        assert all(other < count for other in LADDER if other < step)


def test_powers_of_two() -> None:
    assert [power_of_two(count) for count in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


def test_lengths_share_a_bucket_up_to_the_next_power_of_two() -> None:
    assert bucket(0) == bucket(1) == bucket(SHORT) == SHORT
    assert bucket(SHORT + 1) == 2 * SHORT
    assert bucket(4096) == 4096
    assert bucket(4097) == 8192


# ------------------------------------------------------------------------------------ attention cut
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("heads", SIZES, ids=str)
def test_tiles_are_those_that_the_kernel_can_run(heads: HeadSizes, trees: bool) -> None:
    group = power_of_two(heads.queries // heads.keys)
    for rows, longest in itertools.product(
        (1, 2, 16, 60, 129, MAX_ROWS), (512, 2048, 4096, 1 << 16)
    ):
        tiles = tiles_for(rows, 1, longest, heads, trees, ahead=rows)
        assert tiles.trees == trees
        assert tiles.rows == power_of_two(tiles.rows)
        assert tiles.rows * group <= 64  # lines of queries that one program holds
        if tiles.lead:
            assert tiles.lead in LEADS
            assert tiles.units == units_of(longest + rows, tiles.lead)
        else:  # all closed groups, and the open one; or a single program
            assert tiles.units in ((1, 2) if trees else (1,))


def test_blocks_of_trees_that_fill_the_device_have_one_program_each() -> None:
    heads = HeadSizes(9, 3, 64)
    many = tiles_for(MAX_ROWS, 64, SHORT, heads, trees=True)
    assert (many.units, many.lead, many.with_paths) == (1, 0, False)
    few = tiles_for(64, 8, SHORT, heads, trees=True)
    assert (few.units, few.lead, few.with_paths) == (2, 0, True)
    large = tiles_for(MAX_ROWS, 1, 1 << 16, heads, trees=True)
    assert large.units > 1 or large.lead


@pytest.mark.parametrize("heads", SIZES, ids=str)
def test_programs_take_as_few_groups_as_keep_the_device_within_a_wave(heads: HeadSizes) -> None:
    for power in range(9, 17):
        tiles = tiles_for(1, 1, 1 << power, heads, trees=False)
        fitting = [lead for lead in LEADS if heads.keys * units_of(1 << power, lead) <= WAVE]
        assert tiles.lead == (fitting[0] if fitting else 0)


def test_many_rows_or_long_texts_take_large_blocks() -> None:
    group = HEADS.queries // HEADS.keys
    assert tiles_for(16, 1, 2048, HEADS, trees=True).rows == 16 // group
    assert tiles_for(16, 1, 4096, HEADS, trees=True).rows == 64 // group
    assert tiles_for(15, 1, 4096, HEADS, trees=True).rows == 16 // group  # too few for one
    assert tiles_for(32, 4, 4096, HEADS, trees=True).rows == 16 // group  # eight of each session
    assert tiles_for(129, 4, 512, HEADS, trees=False).rows == 64 // group
    assert tiles_for(129, 4, 512, HEADS, trees=True).rows == 16 // group  # a program for each row


def test_blocks_of_wide_heads_are_smaller_on_a_small_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide, narrow = HeadSizes(32, 8, 128), HeadSizes(32, 8, 64)
    rows = []
    for limit in (227 << 10, 99 << 10):
        monkeypatch.setattr(pass_inputs, "shared_limit", lambda limit=limit: limit)
        found = [tiles_for(64, 1, 4096, heads, trees=True).rows for heads in (wide, narrow)]
        rows.append([*found, tiles_for(1, 1, 512, wide, trees=True).rows])
    assert rows == [[16, 16, 4], [8, 16, 4]]


@pytest.mark.parametrize("trees", [False, True])
def test_very_wide_heads_take_few_rows_and_one_chunk_at_a_time(trees: bool) -> None:
    tiles = tiles_for(128, 1, 1 << 15, HeadSizes(8, 4, 256), trees)
    assert (tiles.rows, tiles.warps, tiles.stages) == (8, 8, 1)


# ------------------------------------------------------------------------------------------- shapes
@pytest.mark.parametrize("rows", [1, 3, 16, 33, 200, MAX_ROWS])
@pytest.mark.parametrize("heads", SIZES, ids=str)
def test_the_shape_of_one_session_holds_its_rows(rows: int, heads: HeadSizes) -> None:
    shape = shape_of_one(rows, 700, -(-rows // 64), True, heads, rows > 1)
    assert shape.rows >= rows
    assert shape.rows in LADDER
    assert shape.blocks * shape.tiles.rows >= shape.rows
    assert shape.words * 64 >= rows
    assert shape.words in COUNTS
    assert shape.size == 3 * shape.rows + FIELDS * shape.blocks


def test_texts_of_one_bucket_share_a_shape() -> None:
    assert shape_of_one(5, 513, 1, True, HEADS, True) is shape_of_one(5, 1024, 1, True, HEADS, True)
    assert shape_of_one(5, 513, 1, True, HEADS, True) != shape_of_one(5, 513, 1, False, HEADS, True)
    assert shape_of_one(5, 513, 1, True, HEADS, True) != shape_of_one(5, 513, 1, True, HEADS, False)


def test_units_reach_the_last_row_of_the_longest_text_of_a_shape() -> None:
    for rows, length in itertools.product((1, 16, 500), (0, 512, 513, 4096)):
        shape = shape_of_one(rows, length, 1, True, HEADS, False)
        assert shape.tiles.lead
        assert shape.tiles.units >= units_of(length + rows, shape.tiles.lead)


@pytest.mark.parametrize("nodes", [[5, 1], [3, 3], [1, 1]])
def test_only_a_pass_with_a_tree_has_programs_for_paths(nodes: list[int]) -> None:
    trees = [random_tree(seed, count) for seed, count in enumerate(nodes)]
    blocks = [MaskBlock(9, tree.parents, tree.depths) for tree in trees]
    spans = [span(100 * at, 9, len(tree)) for at, tree in enumerate(trees)]
    [load] = split_passes(PassInput(np.concatenate([tree.tokens for tree in trees]), blocks, spans))
    assert load.shape(True, HEADS).tiles.trees == (not all(is_chain(block) for block in blocks))


def test_several_sessions_have_blocks_of_their_own() -> None:
    blocks = [chain(5, 3), chain(600, 9), chain(0, 1)]
    spans = [span(0, 5, 3), span(1000, 600, 9), span(2000, 0, 1)]
    [load] = split_passes(PassInput(np.arange(13), blocks, spans))
    shape = load.shape(True, HEADS)
    needed = sum(-(-rows // shape.tiles.rows) for rows in (3, 9, 1))
    assert shape.blocks >= needed
    assert shape.blocks in LADDER
    assert shape.rows == 16


# --------------------------------------------------------------------------------- ancestor words
@pytest.mark.parametrize("nodes", [1, 2, 17, 63, 64])
def test_ancestor_words_are_the_bits_of_paths(nodes: int) -> None:
    tree = random_tree(nodes, nodes)
    words = np.array(ancestor_words(tree.parents.tolist()), np.int64)
    assert np.array_equal(bits_of(words[:, None], nodes), tree.ancestors())


@pytest.mark.parametrize("nodes", [1, 40, 64, 65, 200])
def test_packed_masks_are_the_trees_ancestors(nodes: int) -> None:
    tree = random_tree(nodes, nodes)
    words = pack(tree.ancestors())
    assert words.shape == (nodes, -(-nodes // 64))
    assert words.dtype == np.int64
    assert np.array_equal(bits_of(words, nodes), tree.ancestors())


@pytest.mark.parametrize("since", [0, 3])
def test_the_words_of_a_tree_are_its_mask(since: int) -> None:
    tree = random_tree(5, 20)
    block = MaskBlock(7, tree.parents, tree.depths, since)
    assert not is_chain(block)
    assert np.array_equal(bits_of(row_words(block), 20), visible_nodes(block, WHOLE))


@pytest.mark.parametrize("nodes", [1, 2, 200])
def test_a_chain_needs_no_words(nodes: int) -> None:
    block = chain(7, nodes)
    assert is_chain(block)
    assert row_words(block).shape == (nodes, 1)
    assert not row_words(block).any()


def test_a_chain_with_one_more_branch_is_a_tree() -> None:
    parents = np.array([-1, 0, 1, 1])
    assert not is_chain(MaskBlock(0, parents, np.array([0, 1, 2, 2])))


def test_words_are_widened_with_zeros() -> None:
    words = np.array([[1, 2], [3, 4]])
    assert widen(words, 4).tolist() == [[1, 2, 0, 0], [3, 4, 0, 0]]
    assert widen(words, 2).tolist() == words.tolist()


# ---------------------------------------------------------------------------------- rows of a pass
def test_rows_are_cut_into_passes_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_inputs, "MAX_ROWS", 8)
    blocks = [chain(4, 5), chain(10, 12, since=2), chain(0, 2)]
    spans = [span(0, 4, 5), span(100, 12, 10), span(200, 0, 2)]
    rows = PassInput(np.arange(17), blocks, spans)
    found = split_passes(rows)
    assert [len(load.tokens) for load in found] == [8, 8, 1]
    described = [
        [(p.row, p.rows, p.first, p.length, p.nodes) for p in load.pieces] for load in found
    ]
    assert described == [
        [(0, 5, 0, 4, 5), (5, 3, 100, 10, 5)],
        [(0, 7, 100, 10, 12), (7, 1, 200, 0, 1)],
        [(0, 1, 200, 0, 2)],
    ]
    assert np.concatenate([load.tokens for load in found]).tolist() == list(range(17))
    slots = np.concatenate([load.slots for load in found]).tolist()
    assert slots == [*range(4, 9), *range(112, 122), 200, 201]
    positions = np.concatenate([load.positions for load in found]).tolist()
    assert positions == [*range(4, 9), *range(12, 22), 0, 1]


def test_roots_of_many_sessions_are_written_like_chains_of_one_node() -> None:
    tokens, lengths = np.array([7, 8, 9]), np.array([5, 600, 0])
    firsts = np.array([0, 1000, 2000])
    roots = RootRows(tokens, firsts, lengths)
    spans = [span(f, n, 1) for f, n in zip(firsts.tolist(), lengths.tolist(), strict=True)]
    [rows] = split_passes(PassInput(tokens, [chain(n, 1) for n in lengths.tolist()], spans))
    shape = roots.shape(True, HEADS)
    assert (shape.rows, shape.blocks, shape.words, shape.tiles.trees) == (4, 4, 1, False)
    found, wanted = np.full((2, 200), 77)
    assert roots.write(shape, found) == rows.write(shape, wanted)
    assert np.array_equal(found, wanted)


def test_pieces_outside_the_span_are_left_out() -> None:
    rows = PassInput(np.arange(6), [chain(0, 3), chain(0, 3)], [span(0, 0, 3), span(9, 0, 3)])
    assert [piece.first for piece in session_rows(rows, 0, 3)] == [0]
    assert [piece.first for piece in session_rows(rows, 3, 6)] == [9]
    assert [piece.rows for piece in session_rows(rows, 2, 4)] == [1, 1]


def test_a_prompt_beside_a_tree_takes_no_more_words_than_the_tree() -> None:
    tree = random_tree(1, 12)
    blocks = [MaskBlock(3, tree.parents, tree.depths), chain(0, 100)]
    spans = [span(0, 3, 12), span(500, 0, 100)]
    [load] = split_passes(PassInput(np.arange(112), blocks, spans))
    assert load.words.shape == (112, 1)
    assert [piece.chain for piece in load.pieces] == [False, True]
    assert np.array_equal(bits_of(load.words[:12], 12), visible_nodes(blocks[0], WHOLE))
    assert not load.words[12:].any()


# -------------------------------------------------------------------------------- what is written
def read_back(shape: Any, host: IntArray) -> tuple[IntArray, ...]:
    """Tokens, positions, slots, blocks and words of a described pass."""
    rows = shape.rows
    size = shape.size + rows * shape.words
    return (
        host[:rows],
        host[rows : 2 * rows],
        host[2 * rows : 3 * rows],
        host[3 * rows : shape.size].reshape(FIELDS, shape.blocks),
        host[shape.size : size].reshape(rows, shape.words),
    )


def test_a_pass_over_several_sessions_is_written_whole() -> None:
    trees = [random_tree(seed, nodes) for seed, nodes in ((1, 5), (2, 70), (3, 1))]
    lengths, firsts = (3, 40, 0), (0, 1000, 2000)
    blocks = [MaskBlock(n, t.parents, t.depths) for n, t in zip(lengths, trees, strict=True)]
    spans = [span(f, n, len(t)) for f, n, t in zip(firsts, lengths, trees, strict=True)]
    tokens = np.concatenate([tree.tokens for tree in trees])
    [load] = split_passes(PassInput(tokens, blocks, spans))
    shape = load.shape(True, HEADS)
    host = np.full(1 << 14, 77)
    size = load.write(shape, host)
    assert size == shape.size + shape.rows * shape.words
    assert (host[size:] == 77).all()
    told, positions, slots, cuts, words = read_back(shape, host)
    used = len(tokens)
    assert told[:used].tolist() == tokens.tolist()
    assert not told[used:].any()
    assert (slots[used:] == -1).all()  # rows that are not used write nowhere
    row = 0
    for tree, length, first in zip(trees, lengths, firsts, strict=True):
        own = slice(row, row + len(tree))
        assert positions[own].tolist() == (length + tree.depths).tolist()
        assert slots[own].tolist() == list(range(first + length, first + length + len(tree)))
        wanted = tree.ancestors() if len(tree) > 1 else 0  # a chain has no words
        assert np.array_equal(
            bits_of(words[own], len(tree)), np.broadcast_to(wanted, (len(tree),) * 2)
        )
        row += len(tree)
    check_blocks(cuts, [(f, n, len(t)) for f, n, t in zip(firsts, lengths, trees, strict=True)])


def check_blocks(cuts: IntArray, sessions: Sequence[tuple[int, int, int]]) -> None:
    """Blocks take all rows of each session once, and those behind them hold none."""
    row = block = 0
    for first, length, rows in sessions:
        left = rows
        while left:
            base, committed, at, held, nodes, chain_flag = cuts[:, block].tolist()
            assert (base, committed, at, nodes) == (first, length, row, rows)
            assert chain_flag == (rows == 1)
            assert 0 < held <= left
            row, left, block = row + held, left - held, block + 1
    assert not cuts[3, block:].any()


def test_what_was_written_before_is_gone() -> None:
    tree = random_tree(1, 30)
    host = np.zeros(1 << 13, np.int64)
    shape = shape_of_one(30, 9, 1, True, HEADS, True)
    block = MaskBlock(9, tree.parents, tree.depths)
    [load] = split_passes(PassInput(tree.tokens, [block], [span(0, 9, 30)]))
    load.write(shape, host)
    small = SingleTree(np.array([5]), np.array([-1]), np.array([0]), 0, 9)
    small.write(shape, host)
    tokens, _, slots, cuts, words = read_back(shape, host)
    assert tokens.tolist() == [5] + [0] * (shape.rows - 1)
    assert slots.tolist() == [9] + [-1] * (shape.rows - 1)
    assert words[0, 0] == 1
    assert not words[1:].any()
    assert cuts[3].tolist() == [1] + [0] * (shape.blocks - 1)


@pytest.mark.parametrize("nodes", [1, 7, 64])
def test_a_single_tree_is_written_like_rows_of_one_session(nodes: int) -> None:
    tree = random_tree(nodes, nodes)
    lone = SingleTree(tree.tokens, tree.parents, tree.depths, 300, 21)
    shape = lone.shape(True, HEADS)
    host = np.full(1 << 14, 77)
    size = lone.write(shape, host)
    assert size == shape.size + shape.rows * shape.words
    tokens, positions, slots, cuts, words = read_back(shape, host)
    assert tokens[:nodes].tolist() == tree.tokens.tolist()
    assert positions[:nodes].tolist() == (21 + tree.depths).tolist()
    assert slots.tolist() == [*range(321, 321 + nodes), *[-1] * (shape.rows - nodes)]
    check_blocks(cuts, [(300, 21, nodes)])
    assert np.array_equal(bits_of(words[:nodes], nodes), tree.ancestors())


def test_a_single_chain_is_told_from_a_tree() -> None:
    each = np.arange(5)
    lone = SingleTree(each, each - 1, each, 300, 21)
    host = np.full(1 << 14, 77)
    shape = lone.shape(True, HEADS)
    lone.write(shape, host)
    assert read_back(shape, host)[3][5].all()


# ---------------------------------------------------------------------------------- on the device
def test_inputs_arrive_on_the_device_in_parts() -> None:
    inputs = PassInputs(torch.device("cpu"))
    tree = random_tree(4, 9)
    lone = SingleTree(tree.tokens, tree.parents, tree.depths, 64, 7)
    shape = lone.shape(False, HEADS)
    inputs.send(lone, shape)
    tokens, positions, slots, blocks, words = inputs.parts(shape)
    assert tokens[:9].tolist() == tree.tokens.tolist()
    assert positions[:9].tolist() == (7 + tree.depths).tolist()
    assert slots[:9].tolist() == list(range(71, 80))
    assert blocks.shape == (FIELDS, shape.blocks)
    assert words.shape == (shape.rows, shape.words)
    assert words[:9, 0].tolist() == ancestor_words(tree.parents.tolist())
    assert (
        tokens.data_ptr() == inputs.on_device.data_ptr()
    )  # views: captured passes read them again


@pytest.mark.parametrize("as_tree", [False, True])
def test_the_largest_pass_fits_the_buffer(as_tree: bool) -> None:
    inputs = PassInputs(torch.device("cpu"))
    tree = random_tree(0, MAX_ROWS)
    block = MaskBlock(0, tree.parents, tree.depths) if as_tree else chain(0, MAX_ROWS)
    [load] = split_passes(PassInput(np.arange(MAX_ROWS), [block], [span(0, 0, MAX_ROWS)]))
    assert isinstance(load, PassRows)
    for heads in SIZES:
        shape = load.shape(True, heads)
        assert shape.size + shape.rows * shape.words <= len(inputs.on_device)
        inputs.send(load, shape)
        assert inputs.parts(shape)[0].tolist() == list(range(MAX_ROWS))
