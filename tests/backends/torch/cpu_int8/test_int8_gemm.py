"""Streamed products, whole passes and drafts on packed weights: the same bits as FBGEMM's, by any number of threads."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import (
    eagle_kernels,
    int8_gemm,
    linear,
    thread_team,
)
from sapwood.backends.torch.cpu_int8.eagle3 import Int8Eagle3
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear, unpack
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.cpu_int8.runner import BufferPool
from sapwood.backends.torch.cpu_int8.thread_team import ThreadTeam, finish, share, take, wait
from sapwood.core.protocols import TreeInput
from sapwood.drafters.heads.head_kv_cache import best
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from tests.helpers import tiny_models
from tests.helpers.int8_targets import PACKABLE, TEXT, int8_network, shuffle_blocks
from tests.helpers.random_trees import random_tree

pytestmark = pytest.mark.skipif(
    not int8_gemm.available(), reason="this processor has no eight-bit dot products"
)
Make = Callable[[], Any]


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Make], Any]:
    """Make something as a processor without the instruction would."""

    def made(make: Make) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(int8_gemm, "available", lambda: False)
            return make()

    return made


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with so many threads."""
    had = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(had)


def answers(net: Int8Network, name: str, torn: bool = False) -> np.ndarray:
    """Logits of trees in two sessions of one pass, and of a tree after a commit, [rows, vocab]."""
    backend = TorchBackend(tiny_models.make(name), name, net)
    if torn:
        shuffle_blocks(backend, 1)
    first = backend.open(TEXT * 3)
    second = backend.open(TEXT[:4])
    trees = [random_tree(24), random_tree(7, seed=1)]
    scores = backend.score([TreeInput(first, trees[0]), TreeInput(second, trees[1])])
    first.commit(trees[0].path(23))
    trees.append(random_tree(5, seed=2))
    scores += backend.score([TreeInput(first, trees[2])])
    return np.stack(
        [
            found.logits(i)
            for found, tree in zip(scores, trees, strict=True)
            for i in range(len(tree))
        ]
    )


# ---------------------------------------------------------------------------------------- products
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 21])
@pytest.mark.parametrize("shape", [(40, 33), (16, 4), (960, 576), (50, 1536)])
@pytest.mark.parametrize("kind", [Int8Linear, SplitLinear])
def test_products_have_the_bits_of_fbgemm(
    kind: type[Int8Linear], shape: tuple[int, int], rows: int, plainly: Callable[[Make], Int8Linear]
) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(shape)
    x = torch.rand(rows, shape[1]) * 2 - 1
    x[0, 0], x[-1, -1] = 1, -1
    x[:, 2:4] = torch.tensor([82.500006, -3.4999999]) / 127  # next to the middle of two steps
    streamed = kind(weight)
    reference = plainly(lambda: kind(weight))
    assert isinstance(streamed.packed, int8_gemm.StreamedMatrix)
    assert not isinstance(reference.packed, int8_gemm.StreamedMatrix)
    assert torch.equal(streamed(x), reference(x))
    torch.testing.assert_close(unpack(streamed.packed), unpack(reference.packed))
    assert torch.equal(streamed.rounded(8)(x), reference.rounded(8)(x))


def test_weights_are_rounded_as_torch_rounds_them() -> None:
    torch.manual_seed(1)
    weight = torch.randn(64, 129) * torch.logspace(-44, 30, 64)[:, None]
    weight[3] = 0
    weight[4, ::2] = weight[4].abs().max() * torch.arange(-32, 33) / 64  # middles of two steps
    integers, scales = linear.rounded(weight)
    want = linear.as_qint8(weight)
    assert torch.equal(integers, want.int_repr())
    assert torch.equal(scales.double(), want.q_per_channel_scales())


@pytest.mark.parametrize("height", [16, 32, 48, 112])
def test_a_matrix_is_packed_in_strips(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = torch.randn(100, 33) * torch.rand(100, 1)
    want = linear.pack(weight)
    monkeypatch.setattr(linear, "STRIP", 33 * height)
    seen: list[int] = []
    monkeypatch.setattr(linear, "rounded", noting(linear.rounded, seen))
    made = linear.pack(weight)
    assert seen == [min(height, 100 - start) for start in range(0, 100, height)]
    for part in ("bytes", "scales", "zeros"):
        assert np.array_equal(getattr(made, part), getattr(want, part))


def noting(
    function: Callable[[torch.Tensor], Any], seen: list[int]
) -> Callable[[torch.Tensor], Any]:
    """The function, which notes how many rows it is handed."""

    def noted(rows: torch.Tensor) -> Any:
        seen.append(len(rows))
        return function(rows)

    return noted


# ------------------------------------------------------------------------------------ whole passes
@pytest.mark.parametrize("name", PACKABLE)
def test_a_whole_pass_has_the_bits_of_one_layer_by_layer(
    name: str, threads: int, plainly: Callable[[Make], Int8Network]
) -> None:
    reference = plainly(lambda: int8_network(name))
    assert reference.runner is None
    assert np.array_equal(answers(int8_network(name), name), answers(reference, name))


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("torn", [False, True])
def test_heads_of_usual_width_read_the_same_bits(
    width: int, torn: bool, threads: int, plainly: Callable[[Make], Int8Network]
) -> None:
    shape = {
        "head_dim": width,
        "hidden_size": 56,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    }
    streamed = int8_network("llama", **shape)
    reference = plainly(lambda: int8_network("llama", **shape))
    assert np.array_equal(answers(streamed, "llama", torn), answers(reference, "llama"))


@pytest.mark.parametrize("torn", [False, True])
def test_wide_heads_of_an_extended_pass_read_the_same_bits(
    torn: bool, threads: int, plainly: Callable[[Make], Int8Network]
) -> None:
    streamed = int8_network("gemma2-eager", head_dim=256)
    reference = plainly(lambda: int8_network("gemma2-eager", head_dim=256))
    assert np.array_equal(
        answers(streamed, "gemma2-eager", torn), answers(reference, "gemma2-eager")
    )


@pytest.mark.parametrize("name", ["qwen3", "gemma2-eager", "olmo2", "qwen3-moe"])
@pytest.mark.parametrize(
    "change",
    [lambda net: net.skipping({0, 3}), lambda net: net.rounded(8), lambda net: net.rounded(4)],
)
def test_cheaper_networks_have_the_same_bits(
    change: Callable[[Int8Network], Int8Network],
    name: str,
    plainly: Callable[[Make], Int8Network],
) -> None:
    reference = plainly(lambda: change(int8_network(name)))
    assert np.array_equal(answers(change(int8_network(name)), name), answers(reference, name))


@pytest.mark.parametrize("name", ["llama", "gemma3-caps"])
def test_a_pass_in_two_parts_shows_and_says_the_same(
    name: str,
    plainly: Callable[[Make], Int8Network],
) -> None:
    found = []
    for net in (int8_network(name), plainly(lambda: int8_network(name))):
        backend = TorchBackend(tiny_models.make(name), name, net)
        tree = random_tree(9)
        backend.watch([0, 1, 2])
        session = backend.open(TEXT)
        entered = backend.layer_input(TreeInput(session, tree), 1)
        [late] = backend.score([TreeInput(session, tree)])
        [whole] = backend.score([TreeInput(backend.open(TEXT), tree)])
        assert np.array_equal(late.logits(8), whole.logits(8))
        found.append([entered, late.hidden(range(9), [0, 1, 2]), whole.hidden(range(9), [0, 1, 2])])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_logits_stay_as_long_as_somebody_looks_at_them() -> None:
    pool = BufferPool(8)
    first = pool.take(4)
    second = pool.take(4)
    place = first.ctypes.data
    part = first[1:3, :5]
    assert second.ctypes.data != place
    del first
    assert pool.take(4).ctypes.data != place
    del part
    assert pool.take(3).ctypes.data == place


# ------------------------------------------------------------------------------------------ drafts
@torch.inference_mode()
@pytest.mark.parametrize("head_width", [16, 64, 128])
def test_a_streamed_head_drafts_what_fbgemm_s_drafts(
    head_width: int, plainly: Callable[[Make], Int8Eagle3]
) -> None:
    torch.manual_seed(0)
    shape = LayerShape(width=64, heads=10, kv_heads=2, head_width=head_width, inner=96)
    net = Eagle3Head(
        Eagle3Config(shape, target_width=48, vocab=300, draft_vocab=200, features=(0, 1, 2))
    )
    features = torch.randn(7, 3 * 48)
    embeds = torch.randn(1, 7, 64)
    positions = torch.arange(5, 12)[None]
    mask = torch.ones(7, 7).tril().bool()
    found = []
    for head in (Int8Eagle3(net), plainly(lambda: Int8Eagle3(net))):
        states = head.begin(features)[None]
        query, key, value = head.midlayer.project(embeds, states, positions)
        read = head.midlayer.self_attn.attend(query, key, value, mask)
        found.append((head, head.midlayer.finish(states, read)[0]))
    (streamed, outputs), (reference, want) = found
    torch.testing.assert_close(outputs, want, rtol=0, atol=0.02 * float(want.std()))
    logits = streamed.logits(outputs)
    torch.testing.assert_close(logits, reference.logits(outputs))
    chosen = streamed.best(outputs, 6)
    assert chosen is not None
    assert reference.best(outputs, 6) is None
    tokens, chances = best(logits, 6, net.vocabulary.numpy())
    assert np.array_equal(chosen[0], tokens)
    np.testing.assert_allclose(chosen[1], chances, rtol=1e-5)


def test_of_equals_the_lowest_is_chosen_first() -> None:
    row = np.array([1, 3, 2, 3, 1, 3, 2], np.float32)
    ids = np.empty(5, np.int64)
    chances = np.empty(5)
    eagle_kernels.choose(row, np.empty(7, np.float32), ids, chances)
    assert ids.tolist() == [1, 3, 5, 2, 6]
    np.testing.assert_allclose(chances, np.exp(row[ids]) / np.exp(row).sum(), rtol=1e-5)


# ----------------------------------------------------------------------------------------- threads
@njit(nogil=True)
def count(marks: Any, counters: Any, worker: int, workers: int) -> int:
    """Two stages: each item is marked once, the second time only where the first stage is over."""
    yields = 0
    for stage in range(2):
        counter = counters[stage].ctypes.data
        item = take(counter, 50, worker)
        while item < 50:
            start, stop = share(len(marks), item, 50)
            for i in range(start, stop):
                marks[i] += 1 if stage == 0 or marks.min() > 0 else 100
            finish(counter)
            item = take(counter, 50, worker)
        yields += wait(counter, 50)
    return yields


def test_a_team_does_each_item_once_and_stage_after_stage(threads: int) -> None:
    for _ in range(20):
        marks = np.zeros(101, np.int64)
        ThreadTeam().run(count, marks, np.zeros((2, thread_team.COUNTERS), np.int64))
        assert (marks == 2).all()


def test_the_caller_works_alone_for_a_while_after_it_was_held_up(threads: int) -> None:
    mates = ThreadTeam()
    asked = []

    def task(held_up: bool, worker: int, workers: int) -> int:
        if worker == 0:
            asked.append(workers)
        return int(held_up)

    for held_up in (False, True, False, True, False, False, False):
        mates.run(task, held_up)
    assert asked == [threads, threads, 1, threads, 1, 1, threads]


def test_callers_at_once_have_logits_of_their_own() -> None:
    pool = BufferPool(64)
    mixed = list[int]()

    def call(caller: int) -> None:
        for turn in range(300):
            mine = pool.take(1 + turn % 3)
            mine.fill(caller)
            time.sleep(0)  # another's turn
            if not bool((mine == caller).all()):
                mixed.append(turn)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
