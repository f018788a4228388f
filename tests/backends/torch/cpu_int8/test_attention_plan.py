"""Rows of a pass in pieces: which keys they see, where they are written, and how they are multiplied."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the int8 path needs numba: pip install numba")

from sapwood.backends.torch.cpu_int8.attention_plan import FEW, TOGETHER, floats, pair, pieces
from sapwood.backends.torch.cpu_int8.runner import visible_keys
from sapwood.backends.torch.kv_slots import KvLayout, KvSlots, RowSpan
from sapwood.backends.torch.network import MaskBlock, PassInput, visible_nodes
from sapwood.core.array_types import IntArray
from sapwood.core.tree import Tree
from tests.helpers import llama_parts
from tests.helpers.llama_parts import HEAD_WIDTH, HEADS, KV_HEADS

MODEL = llama_parts.make_model()


def layout() -> KvLayout:
    made = KvLayout()
    made.place(torch.zeros(1, KV_HEADS, 1, HEAD_WIDTH))
    made.place(torch.zeros(1, KV_HEADS, 1, 1))
    return made


def chain(length: int, nodes: int, since: int = 0) -> MaskBlock:
    each = np.arange(nodes)
    return MaskBlock(length, each - 1, each, since)


class Apart(KvSlots):
    """Slots whose places lie in two runs."""

    def runs(self, stop: int) -> IntArray:
        return np.array([[0, 4], [100, stop - 4]])

    def places(self, places: Any) -> IntArray:
        wanted = np.asarray(places, np.int64)
        return np.where(wanted < 4, wanted, wanted + 96)


def made(*sessions: tuple[MaskBlock, RowSpan], windows: set[int] = frozenset({0})) -> list[Any]:  # type: ignore[assignment]
    blocks, spans = zip(*sessions, strict=True)
    return list(pieces(MODEL, PassInput(np.zeros(0, np.int64), blocks, spans), windows))


def test_a_tensor_and_its_array_are_one_memory() -> None:
    tensor, array = pair(2, 3)
    tensor[:] = 4
    assert (array == 4).all()
    copy = floats(tensor.half())
    assert copy.dtype == np.float32
    tensor.zero_()
    assert (copy == 4).all()


def test_rows_of_all_sessions_are_taken_once_and_in_order() -> None:
    slots = [KvSlots(layout(), 300) for _ in range(2)]
    rows = TOGETHER + 5
    found = made(
        (chain(7, rows), RowSpan(slots[0], 7, rows)), (chain(0, 3), RowSpan(slots[1], 0, 3))
    )
    assert [(each.rows.start, each.rows.stop) for each in found] == [
        (0, TOGETHER),
        (TOGETHER, rows),
        (rows, rows + 3),
    ]
    assert found[0].slots.tolist() == list(range(7, 7 + TOGETHER))
    assert found[1].slots.tolist() == list(range(7 + TOGETHER, 7 + rows))
    assert [each.keys for each in found] == [
        7 + TOGETHER,
        7 + rows,
        3,
    ]  # later ones are not written


@pytest.mark.parametrize("window", [0, 1, 3, 50])
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (2, 9), (8, 9)])
def test_a_piece_sees_what_the_whole_mask_says(window: int, start: int, stop: int) -> None:
    tree = Tree(0)
    random = np.random.default_rng(4)
    while len(tree) < 12:
        tree.add(int(random.integers(len(tree))), 1, 0.5, sampled=True)
    block = MaskBlock(5, tree.parents, tree.depths, since=3)
    nodes = block.since + stop
    found = visible_keys(block, window, start, stop, nodes)
    assert np.array_equal(found.seen, visible_nodes(block, window)[start:stop, :nodes])
    assert found.seen.flags.c_contiguous
    positions = block.positions[start:stop]
    wanted = [min(max(0, at - window + 1), 5) if window else 0 for at in positions]
    assert found.oldest.tolist() == (wanted if block.windowed(window) else [0] * (stop - start))


@pytest.mark.parametrize("window", [0, 1, 3, 50])
def test_a_root_alone_sees_its_text_and_itself(window: int) -> None:
    tree = Tree.of_root(7)
    found = visible_keys(MaskBlock(5, tree.parents, tree.depths), window, 0, 1, 1)
    assert found.seen.tolist() == [[True]]
    assert found.oldest.tolist() == [min(max(0, 5 - window + 1), 5) if window else 0]


def test_each_window_has_a_sight_of_its_own() -> None:
    [found] = made((chain(9, 4), RowSpan(KvSlots(layout(), 20), 9, 4)), windows={0, 3})
    assert set(found.sights) == {0, 3}
    assert found.sights[0].oldest.tolist() == [0, 0, 0, 0]
    assert found.sights[3].oldest.tolist() == [7, 8, 9, 9]


def test_few_rows_or_short_texts_take_compiled_products() -> None:
    slots = KvSlots(layout(), 2 * FEW)

    def few(length: int, rows: int) -> bool:
        [found] = made((chain(length, rows), RowSpan(slots, length, rows)))
        return bool(found.few)

    assert few(2 * FEW - 1, 1)
    assert few(FEW // 2 - 2, 2)
    assert not few(FEW // 2 - 1, 2)


def test_a_text_in_one_run_is_not_copied() -> None:
    slots = KvSlots(layout(), 2 * FEW)
    [found] = made((chain(FEW, 4), RowSpan(slots, FEW, 4)))
    assert found.near is not None
    assert found.near.shape[2] == FEW + 4
    assert found.near.data_ptr() == slots.buffers[0].data_ptr()
    [apart] = made((chain(FEW, 4), RowSpan(Apart(layout(), 2 * FEW), FEW, 4)))
    assert apart.near is None
    assert apart.copy.shape == (KV_HEADS, FEW + 4, HEAD_WIDTH)
    assert apart.slots.tolist() == [FEW + 96 + each for each in range(4)]


def test_buffers_have_a_place_for_each_row_and_query_head() -> None:
    [found] = made((chain(9, 4), RowSpan(KvSlots(layout(), 20), 9, 4)))
    places = 4 * HEADS // KV_HEADS
    assert found.queries.shape == found.sums.shape == (KV_HEADS, places, HEAD_WIDTH)
    assert found.products.shape == (KV_HEADS, places, 13)
    assert found.steps.shape == found.results.shape == (KV_HEADS, places)
    assert len(found.bits) == 13
