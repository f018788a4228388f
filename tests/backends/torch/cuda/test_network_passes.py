"""Which passes of the CUDA network are captured, counted and forgotten; no kernel runs here."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import llama_parts
from tests.helpers.llama_parts import HEAD_WIDTH, VOCAB, WIDTH
from tests.helpers.triton_mode import require

require()

from sapwood.backends.torch.cuda import network as module
from sapwood.backends.torch.cuda.draft.device_tree import RoundBuffer
from sapwood.backends.torch.cuda.kv_pool import CudaKvPool
from sapwood.backends.torch.cuda.network import CAPTURE_AFTER, CudaNetwork, angles_of
from sapwood.backends.torch.cuda.pass_inputs import (
    NOTHING,
    PassRows,
    PassShape,
    SessionRows,
    SingleTree,
)


class Still(CudaNetwork):
    """Notes the shapes of passes instead of running them, and leaves its number as logits."""

    def step(self, shape: PassShape) -> None:
        self.ran = [*getattr(self, "ran", []), shape.rows]
        self.buffers.logits[: shape.rows] = float(self.count)
        self.buffers.best[: shape.rows] = self.count


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Still:
    monkeypatch.setattr(module, "place", lambda *args: None)
    monkeypatch.setattr(CudaKvPool, "keep", lambda *args: None)
    return Still(llama_parts.make_model(), slots=64)


def tree(nodes: int, length: int = 3) -> SingleTree:
    each = np.arange(nodes)
    return SingleTree(each, each - 1, each, 0, length)


def prompt(rows: int) -> PassRows:
    """Rows of a prompt, of which each sees those before it."""
    each = np.arange(rows)
    pieces = [SessionRows(0, rows, 0, 0, rows, chain=True)]
    return PassRows(each, each, each, pieces, np.zeros((rows, 1), np.int64))


def follow(network: Still, round_buffer: RoundBuffer, nodes: int = 5) -> Any:
    return network.run_device_tree(round_buffer.rows, round_buffer.path, nodes, 0, 3, NOTHING, ())


def test_angles_are_cosines_and_sines_by_position() -> None:
    model = llama_parts.make_model()
    angles = angles_of(model, 9)
    assert angles.shape == (9, HEAD_WIDTH)
    wanted = np.arange(9)[:, None] * model.rates.numpy()
    assert np.allclose(angles[:, :3].numpy(), np.cos(wanted), atol=1e-6)
    assert np.allclose(angles[:, 3:].numpy(), np.sin(wanted), atol=1e-6)


def test_every_layer_and_the_output_head_have_a_norm() -> None:
    layers = [llama_parts.make_layer(seed, window) for seed, window in ((1, 5), (2, 0), (3, 5))]
    network = Still(llama_parts.make_model(*layers), slots=16)
    assert len(network.scales) == 4  # of three layers and the output head
    assert network.precision == "float32"


def test_an_answer_has_the_rows_that_were_asked_for(network: Still) -> None:
    result = network.run_pass(tree(5), (), head=True)
    assert result.logits is not None
    assert result.logits.shape == (5, VOCAB)
    assert network.ran == [8]  # the next step of the ladder
    states = network.run_pass(tree(3), [1], head=False)
    assert states.logits is None
    assert states.states is not None
    assert states.states.shape == (3, WIDTH)
    assert list(states.kept) == [1]
    assert network.count == 2


def test_passes_of_one_shape_share_a_captured_step(network: Still) -> None:
    network.run_pass(tree(5), (), head=True)
    first = network.last
    network.run_pass(tree(8), (), head=True)
    assert network.last is first
    network.run_pass(tree(9), (), head=True)
    assert network.last is not first
    network.run_pass(tree(5), (), head=False)
    assert network.last is not first


@pytest.mark.parametrize("change", ["watch", "slots", "logits"])
def test_captured_passes_are_forgotten_when_buffers_move(network: Still, change: str) -> None:
    network.run_pass(tree(5), (), head=True)
    first = network.last
    if change == "watch":
        network.run_pass(tree(5), [0], head=True)
    elif change == "slots":
        network.pool.reserve(65)
        network.run_pass(tree(5), (), head=True)
        assert len(network.angles) == network.pool.slots
    else:
        network.run_pass(prompt(200), (), head=True)
        network.run_pass(tree(5), (), head=True)
    assert network.last is not first


def test_a_tree_on_the_device_is_frequent_after_some_passes(network: Still) -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    for number in range(CAPTURE_AFTER + 1):
        assert not network.is_frequent(5, 3, round_buffer.path), number
        follow(network, round_buffer)
    assert network.is_frequent(5, 3, round_buffer.path)
    other = RoundBuffer(torch.device("cpu"))
    assert not network.is_frequent(5, 3, other.path)  # another place
    assert not network.is_frequent(50, 3, round_buffer.path)  # another shape
    network.pool.reserve(65)
    assert not network.is_frequent(5, 3, round_buffer.path)  # captured for slots that have moved


def test_a_launched_pass_answers_beside_the_one_before(network: Still) -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    before = follow(network, round_buffer)
    told: list[bool] = []
    desk = network.prelaunch(round_buffer.rows, round_buffer.path, 4, 9, lambda: told.append(True))
    assert told == [True]
    assert (before.logits == 1).all()  # still there
    after = network.prelaunched_result(desk, 4, ())
    assert after.logits is not None
    assert after.logits.shape == (4, VOCAB)
    assert (after.logits == 2).all()
    again = network.prelaunch(round_buffer.rows, round_buffer.path, 4, 9, lambda: None)
    assert again != desk  # the two take turns
    assert (after.logits == 2).all()
    best = network.prelaunched_result(again, 4, ()).best
    assert best is not None
    assert best.tolist() == [3] * 4


def test_a_pass_that_was_asked_for_takes_the_first_buffers(network: Still) -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    follow(network, round_buffer)
    network.prelaunched_result(
        network.prelaunch(round_buffer.rows, round_buffer.path, 4, 9, lambda: None), 4, ()
    )
    result = network.run_pass(tree(5), (), head=True)
    assert result.logits is not None
    assert result.logits.data_ptr() == network.buffer_sets[0].logits.data_ptr()


def test_both_buffers_watch_the_same_layers(network: Still) -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    follow(network, round_buffer)
    network.prelaunch(round_buffer.rows, round_buffer.path, 4, 9, lambda: None)
    network.run_pass(prompt(200), [0, 1], head=True)
    for desk in network.buffer_sets:
        assert sorted(desk.watched) == [0, 1]
        assert len(desk.logits) >= 200


def test_a_sampler_reads_the_logits_that_are_there_now(network: Still) -> None:
    sampler = network.sampler
    assert network.sampler is sampler
    network.run_pass(prompt(200), (), head=True)
    assert network.sampler is not sampler
    assert network.sampler.logits is network.buffers.logits


def test_a_trained_head_is_taken_as_it_is(network: Still) -> None:
    head = torch.nn.Linear(2, 2)
    assert network.convert_head(head) is head
