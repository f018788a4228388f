"""Sequences and cells of a llama.cpp context as the host counts them; the library is a fake that keeps sets of cells."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sapwood.backends.llamacpp import kv_context
from sapwood.backends.llamacpp.kv_context import BF16, ROWS, DecodeRows, KvContext
from sapwood.errors import OutOfMemory, SapwoodError

VOCAB, LANES, END = 5, 8, -1
GRAVE = 0


class FakeBatch(ctypes.Structure):
    """The fields of llama.cpp's batch that are used."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class FakeContext:
    """Cells: a position and the sequences it belongs to."""

    def __init__(self, cells: int) -> None:
        self.size = cells
        self.cells: list[tuple[int, set[int]]] = []
        self.logits = np.empty(0, np.float32)

    def sequence(self, lane: int) -> list[int]:
        return sorted(position for position, lanes in self.cells if lane in lanes)


class FakeLlama:
    """Notes what it was asked, and keeps cells as sets."""

    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1
    llama_batch = FakeBatch

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.freed: list[FakeContext] = []
        self.batches: list[dict[str, list[Any]]] = []
        self.code = 0
        self.no_memory = False
        self.restored = 1

    def llama_max_parallel_sequences(self) -> int:
        return LANES

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace(type_k="f16")

    def llama_init_from_model(self, model: Any, params: Any) -> FakeContext | None:
        self.made.append(params)
        return None if self.no_memory else FakeContext(params.n_ctx)

    def llama_free(self, context: FakeContext) -> None:
        self.freed.append(context)

    def llama_get_memory(self, context: FakeContext) -> FakeContext:
        return context

    def llama_memory_seq_rm(self, memory: FakeContext, lane: int, start: int, end: int) -> None:
        for position, lanes in memory.cells:
            if position >= start and (end == END or position < end):
                lanes.discard(lane)
        memory.cells = [cell for cell in memory.cells if cell[1]]

    def llama_memory_seq_cp(
        self, memory: FakeContext, source: int, lane: int, start: int, end: int
    ) -> None:
        for position, lanes in memory.cells:
            if source in lanes and position >= start and (end == END or position < end):
                lanes.add(lane)

    def llama_decode(self, context: FakeContext, batch: FakeBatch) -> int:
        if self.code:
            return self.code
        count = batch.n_tokens
        if len(context.cells) + count > context.size:
            return kv_context.FULL
        lanes = [[batch.seq_id[i][j] for j in range(batch.n_seq_id[i])] for i in range(count)]
        told = {"tokens": batch.token[:count], "pos": batch.pos[:count], "lanes": lanes,
                "wanted": batch.logits[:count]}  # fmt: skip
        self.batches.append(told)
        context.cells += [(batch.pos[i], set(lanes[i])) for i in range(count)]
        rows = [batch.token[i] for i in range(count) if batch.logits[i]]
        context.logits = np.repeat(np.array(rows, np.float32), VOCAB)
        return 0

    def llama_get_logits(self, context: FakeContext) -> Any:
        return context.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def llama_state_get_size(self, context: FakeContext) -> int:
        return 8

    def llama_state_get_data(self, context: FakeContext, state: Any, size: int) -> None:
        self.state = context.cells

    def llama_state_set_data(self, context: FakeContext, state: Any, size: int) -> int:
        context.cells = self.state
        return self.restored


@pytest.fixture
def llama() -> FakeLlama:
    return FakeLlama()


@pytest.fixture
def context(llama: FakeLlama) -> KvContext:
    return open_context(llama)


def open_context(llama: FakeLlama, gpu: bool = False) -> KvContext:
    weights: Any = SimpleNamespace(llama=llama, vocab=VOCAB, model="model", gpu=gpu)
    return KvContext(weights, 3)


def rows(tokens: list[int], start: int, *lanes: int) -> DecodeRows:
    """A chain of tokens in these sequences."""
    each = np.arange(start, start + len(tokens))
    return DecodeRows(np.array(tokens), each, [list(lanes)] * len(tokens))


def inside(context: KvContext) -> FakeContext:
    found: FakeContext = context._context
    return found


# ---------------------------------------------------------------------------------------- contexts
def test_a_context_is_opened_for_trees(llama: FakeLlama) -> None:
    open_context(llama)
    [params] = llama.made
    assert params.n_seq_max == LANES
    assert (params.n_threads, params.n_threads_batch) == (3, 3)
    assert params.kv_unified
    assert params.swa_full
    assert params.n_batch == params.n_ubatch == ROWS
    assert params.type_k == BF16
    open_context(llama, gpu=True)
    assert llama.made[1].type_k == "f16"


def test_a_context_that_finds_no_memory_says_so(llama: FakeLlama) -> None:
    llama.no_memory = True
    with pytest.raises(SapwoodError, match="found no memory for 4096 tokens; use a smaller model"):
        open_context(llama)


def test_a_context_is_freed_with_its_owner(llama: FakeLlama) -> None:
    context = open_context(llama)
    mine = inside(context)
    del context
    assert llama.freed == [mine]


# --------------------------------------------------------------------------------------- sequences
def test_sequences_are_given_low_ids_first_and_never_the_grave(context: KvContext) -> None:
    taken = [context.take() for _ in range(3)]
    assert taken == [1, 2, 3]
    context.give(1)
    context.give(2)
    assert [context.take(), context.take(), context.take()] == [1, 2, 4]


def test_too_many_branches_are_refused(context: KvContext) -> None:
    for _ in range(LANES - 1):
        context.take()
    with pytest.raises(SapwoodError, match=f"all {LANES} sequences of llama.cpp are in use"):
        context.take()


def test_a_given_sequence_is_empty(context: KvContext) -> None:
    lane = context.take()
    context.decode(rows([1, 2], 0, lane), 0)
    context.give(lane)
    assert inside(context).sequence(lane) == []


def test_a_sequence_is_shared_in_part(context: KvContext) -> None:
    one, two = context.take(), context.take()
    context.decode(rows([1, 2, 3, 4], 0, one), 0)
    context.share(one, two, 1, 3)
    assert inside(context).sequence(two) == [1, 2]
    assert inside(context).sequence(one) == [0, 1, 2, 3]


def test_one_session_frees_its_cells_at_once(context: KvContext) -> None:
    lane = context.take()
    context.sessions[lane] = 4
    context.decode(rows([1, 2, 3, 4], 0, lane), 0)
    context.truncate(lane, 2)
    assert inside(context).sequence(lane) == [0, 1]
    assert inside(context).sequence(GRAVE) == []


def test_cells_between_those_of_others_go_to_the_grave(context: KvContext) -> None:
    one, two = context.take(), context.take()
    context.sessions.update({one: 4, two: 2})
    context.decode(rows([1, 2, 3, 4], 0, one), 0)
    context.truncate(one, 2)
    assert inside(context).sequence(one) == [0, 1]
    assert inside(context).sequence(GRAVE) == [2, 3]


def test_one_cell_is_buried(context: KvContext) -> None:
    lane = context.take()
    context.decode(rows([1, 2, 3], 0, lane), 0)
    context.retire(lane, 1)
    assert inside(context).sequence(GRAVE) == [1]


def test_the_grave_is_emptied_when_the_last_session_leaves(context: KvContext) -> None:
    one, two, branch = context.take(), context.take(), context.take()
    context.sessions.update({one: 4, two: 2})
    context.decode(rows([1, 2], 0, one, branch), 0)
    context.decode(rows([3, 4], 0, two), 0)
    context.release([one, branch])
    assert context.sessions == {two: 2}
    assert inside(context).sequence(GRAVE) == [0, 1]
    context.release([two])
    assert inside(context).cells == []
    assert context.take() == one


# ------------------------------------------------------------------------------------------- limits
def test_cells_are_counted_by_session(context: KvContext) -> None:
    assert (context.blocks, context.block, context.cached, context.used) == (None, 1, 0, 0)
    assert context.fits(1 << 30)
    context.limit(20)
    context.sessions.update({1: 8, 2: 5})
    assert context.used == 13
    assert context.blocks == 20
    assert context.fits(7)
    assert not context.fits(8)


def test_a_pass_that_would_need_too_many_cells_is_refused(context: KvContext) -> None:
    context.check({1: 1 << 30})  # nothing limits it
    context.limit(20)
    context.sessions.update({1: 8, 2: 5})
    context.check({1: 15})
    context.check({3: 7})
    with pytest.raises(OutOfMemory, match="needs 21 cells does not fit memory's 20; wait"):
        context.check({1: 16})


# ---------------------------------------------------------------------------------------- a decode
def test_a_decode_tells_tokens_positions_and_sequences(
    context: KvContext, llama: FakeLlama
) -> None:
    given = DecodeRows(np.array([7, 8, 9]), np.array([4, 5, 5]), [[1, 2, 3], [2], [3, 1]])
    logits = context.decode(given, 2)
    assert llama.batches == [
        {
            "tokens": [7, 8, 9],
            "pos": [4, 5, 5],
            "lanes": [[1, 2, 3], [2], [3, 1]],
            "wanted": [0, 1, 1],
        }
    ]
    assert logits.shape == (2, VOCAB)
    assert logits[:, 0].tolist() == [8, 9]
    assert logits.dtype == np.float32


def test_logits_are_a_copy(context: KvContext) -> None:
    lane = context.take()
    first = context.decode(rows([7], 0, lane), 1)
    context.decode(rows([8], 1, lane), 1)
    assert first[0, 0] == 7


@pytest.mark.parametrize("last", [0, 1, 3, 6])
def test_long_texts_are_decoded_in_pieces(
    context: KvContext, llama: FakeLlama, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    monkeypatch.setattr(kv_context, "ROWS", 4)
    logits = context.decode(rows([1, 2, 3, 4, 5, 6], 0, context.take()), last)
    assert [batch["tokens"] for batch in llama.batches] == [[1, 2, 3, 4], [5, 6]]
    assert logits.shape == (last, VOCAB)
    assert logits[:, 0].tolist() == [1, 2, 3, 4, 5, 6][6 - last :]


def test_a_decode_of_nothing_has_no_logits(context: KvContext, llama: FakeLlama) -> None:
    assert context.decode(rows([], 0, 1), 0).shape == (0, VOCAB)
    assert llama.batches == []


def test_a_failing_decode_is_one_sentence(context: KvContext, llama: FakeLlama) -> None:
    llama.code = -3
    with pytest.raises(SapwoodError, match=r"a pass over 2 tokens \(code -3\)"):
        context.decode(rows([1, 2], 0, 1), 1)


# ------------------------------------------------------------------------------------ a full context
def test_a_full_context_moves_to_a_larger_one(
    llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_context, "CELLS", 4)
    monkeypatch.setattr(kv_context, "ROWS", 4)
    context = open_context(llama)
    lane, other = context.take(), context.take()
    context.sessions.update({lane: 6, other: 1})
    context.decode(rows([1, 2, 3, 4], 0, lane), 0)
    context.truncate(lane, 3)  # retired: the sequence stays full
    old = inside(context)
    logits = context.decode(rows([5, 6], 3, lane), 1)
    assert logits[0, 0] == 6
    assert llama.freed == [old]
    assert inside(context).sequence(lane) == [0, 1, 2, 3, 4]
    assert inside(context).sequence(GRAVE) == []
    assert inside(context).size == 32  # the first doubling that holds twice what is needed


def test_a_move_that_fails_is_one_sentence(
    llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_context, "CELLS", 2)
    context = open_context(llama)
    lane = context.take()
    context.decode(rows([1, 2], 0, lane), 0)
    llama.restored = 0
    with pytest.raises(SapwoodError, match=r"could not move its memory to \d+ cells"):
        context.decode(rows([3], 2, lane), 0)


def test_a_decode_that_stays_full_is_an_error(context: KvContext, llama: FakeLlama) -> None:
    llama.code = kv_context.FULL
    with pytest.raises(SapwoodError, match=r"over 1 tokens \(code 1\)"):
        context.decode(rows([1], 0, 1), 0)
