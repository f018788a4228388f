"""Keys, values and masks of a batch that is decoded side by side, and how batches are planned."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.backends.torch.network import WHOLE
from sapwood.train.batch_cache import BatchCache, KvArena, hide, masks_of, token_bytes
from sapwood.train.decode_state import TextToContinue
from sapwood.train.generate import BUCKET, LADDER, SHAPE, GenerationSettings, Generator, up
from tests.helpers import tiny_models

torch.set_num_threads(1)


def layout(*shapes: tuple[int, int]) -> KvLayout:
    """Layers whose keys and values have these heads and widths."""
    made = KvLayout()
    for layer, (heads, width) in enumerate(shapes):
        state = torch.zeros(1, heads, 1, width)
        made.keys[layer] = made.place(state)
        made.values[layer] = made.place(state)
    return made


# ------------------------------------------------------------------------------------------ masks
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(1, 12), st.integers(1, 12))
def test_a_query_sees_itself_and_what_is_before_it_within_the_window(
    places: list[int], keys: int, window: int
) -> None:
    found = hide(torch.tensor(places)[:, None], keys, window, torch.float32)
    assert found.shape == (len(places), 1, 1, keys)
    for row, place in enumerate(places):
        seen = [slot for slot in range(keys) if float(found[row, 0, 0, slot]) == 0.0]
        assert seen == [slot for slot in range(keys) if place - window < slot <= place]
    hidden = found[found != 0]
    assert (hidden == torch.finfo(torch.float32).min).all()


def test_without_a_window_all_before_is_seen() -> None:
    found = hide(torch.tensor([[0, 2]]), 4, WHOLE, torch.float16)
    assert (found[0, 0] == 0).tolist() == [[True, False, False, False], [True, True, True, False]]
    assert found.dtype == torch.float16


def test_each_kind_of_layer_has_its_mask() -> None:
    places = torch.arange(6)[None]
    one = masks_of({"full": WHOLE}, places, 6, torch.float32, causal=True)
    assert one is None  # attention does it by itself
    both: Any = masks_of({"full": WHOLE, "near": 3}, places, 6, torch.float32, causal=True)
    assert both["full"] is None
    torch.testing.assert_close(both["near"], hide(places, 6, 3, torch.float32))
    short: Any = masks_of({"full": WHOLE, "near": 6}, places, 6, torch.float32, causal=True)
    assert short["near"] is None  # a window as long as the text hides nothing
    decoding: Any = masks_of({"full": WHOLE}, places, 6, torch.float32, causal=False)
    torch.testing.assert_close(decoding, hide(places, 6, WHOLE, torch.float32))


# ----------------------------------------------------------------------------------------- memory
def test_bytes_of_a_token_are_those_of_all_layers() -> None:
    assert token_bytes(layout((2, 8), (2, 8))) == 4 * 2 * 8 * 4
    assert token_bytes(layout((2, 8), (1, 4))) == 2 * (2 * 8 + 4) * 4


def test_a_view_is_the_front_of_the_memory() -> None:
    arena = KvArena(layout((2, 3), (1, 5)), 24)
    [first, second] = arena.view(2, 4)
    assert first.shape == (2, 2, 2, 4, 3)
    assert second.shape == (2, 2, 1, 4, 5)
    first.fill_(7.0)
    assert float(arena.flat[0].sum()) == 7.0 * first.numel()
    assert float(arena.flat[1].sum()) == 0.0


@pytest.mark.parametrize("keep", [[0], [2, 0], [3, 1, 1], [1, 2, 3]])
def test_shrinking_keeps_rows_as_they_are(keep: list[int]) -> None:
    arena = KvArena(layout((2, 3), (1, 5)), 40)
    before = [view.normal_().clone() for view in arena.view(4, 10)]
    arena.shrink(4, 10, torch.tensor(keep))
    for old, new in zip(before, arena.view(len(keep), 10), strict=True):
        torch.testing.assert_close(new, old[:, keep])


# ------------------------------------------------------------------------------------------ cache
def test_reading_prompts_writes_the_front_of_their_rows() -> None:
    made = layout((2, 3))
    buffers = KvArena(made, 12).view(3, 4)
    cache = BatchCache(made, buffers)
    cache.read(slice(1, 3))
    keys, values = torch.randn(2, 2, 2, 2, 3)
    shown = cache.update(keys, values, 0)
    assert shown[0] is keys
    assert shown[1] is values
    [plane, second] = buffers[0]
    torch.testing.assert_close(plane[1:3, :, :2], keys)
    torch.testing.assert_close(second[1:3, :, :2], values)
    assert not plane[0].any()
    assert not plane[:, :, 2:].any()


def test_decoding_writes_each_row_at_its_own_place() -> None:
    made = layout((2, 3))
    buffers = KvArena(made, 12).view(3, 4)
    cache = BatchCache(made, buffers)
    cache.extend(torch.tensor([0, 2, 3]), 3)
    keys, values = torch.randn(2, 3, 2, 1, 3)
    shown, _ = cache.update(keys, values, 0)
    assert shown.shape == (3, 2, 3, 3)
    plane = buffers[0][0]
    for row, place in enumerate((0, 2, 3)):
        torch.testing.assert_close(plane[row, :, place], keys[row, :, 0])
        others = [slot for slot in range(4) if slot != place]
        assert not plane[row][:, others].any()
    assert cache.get_seq_length() == 0
    assert cache.get_mask_sizes(5, 0) == (5, 0)


# --------------------------------------------------------------------------------------- planning
@given(st.integers(0, 10_000), st.integers(1, 999))
def test_the_next_multiple(number: int, step: int) -> None:
    found = up(number, step)
    assert found % step == 0
    assert number <= found < number + step


def generator(rows: int = 4) -> Generator:
    made = Generator(tiny_models.backend("llama"), pace=GenerationSettings(rows, 1, 64))
    made.budget = 10**9
    return made


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 5))
def test_texts_of_similar_length_are_continued_together(sizes: list[int], rows: int) -> None:
    made = generator(rows)
    batches = list(made._batches([TextToContinue([1] * size, 4) for size in sizes]))
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(batch) == rows for batch in batches[:-1])
    longest = [[sizes[index] for index in batch] for batch in batches]
    for before, after in itertools.pairwise(longest):
        assert min(before) >= max(after)


def test_no_more_rows_than_the_memory_holds() -> None:
    made = generator(rows=100)
    made.budget = 5 * SHAPE + 10**6
    logits = 16 * len(made.ends) // token_bytes(made.layout)
    made.budget = 5 * (SHAPE + logits)
    assert made._fitting(SHAPE) == 5
    made.budget = 1
    assert made._fitting(SHAPE) == 1  # one row is always tried


def test_where_each_shape_takes_a_graph_rows_climb_a_ladder() -> None:
    made = generator(rows=40)
    assert [made._rows(count) for count in (1, 17, 40)] == [1, 17, 40]
    made.graphing = True
    assert [made._rows(count) for count in (1, 16, 17, 40)] == [16, 16, 24, 48]
    assert made._fitting(SHAPE) == 32
    assert sorted(LADDER) == LADDER
    assert BUCKET < SHAPE


def test_memory_is_taken_once_and_given_back() -> None:
    made = generator()
    first = made._room(2, SHAPE)
    assert made._room(1, SHAPE) is first
    assert made._board(2, 128) is made._board(2, 128)
    assert made._room(4, SHAPE) is not first
    made.close()
    assert made.arena is None
    assert made.boards == {}
