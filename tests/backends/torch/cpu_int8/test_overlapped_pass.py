"""Passes that go on beside the host: whoever needs what they make waits for them, and nothing else changes."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import int8_gemm, runner
from sapwood.backends.torch.cpu_int8.thread_team import ARRIVED, HAS, LEFT, AsyncTask, ThreadTeam
from sapwood.backends.torch.session import TorchSession
from sapwood.core.protocols import TargetOutput, TreeInput
from tests.helpers import tiny_models
from tests.helpers.int8_targets import TEXT, int8_network
from tests.helpers.random_trees import random_tree

pytestmark = pytest.mark.skipif(
    not int8_gemm.available(), reason="this processor has no eight-bit dot products"
)
MODEL = "llama"
TREE = random_tree(9)


class Late(ThreadTeam):
    """Does nothing before somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.done = 0

    def begin(self, task: Callable[..., int], state: Any, *arguments: Any) -> AsyncTask:
        """Leave everything for later."""
        self.begun += 1

        def rest() -> None:
            self.done += 1
            task(*arguments, 0, 1)

        return AsyncTask(rest)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Have passes run as late as they can."""
    team = Late()
    monkeypatch.setattr(runner, "TEAM", team)
    return team


def begun(late: Late) -> tuple[TorchBackend, TorchSession, TargetOutput]:
    """A pass over a tree that nobody has waited for."""
    backend = TorchBackend(tiny_models.make(MODEL), MODEL, int8_network(MODEL))
    backend.watch([1])
    session = backend.open(TEXT)
    assert late.done == late.begun > 0  # a prompt is read at once
    [scores] = backend.score([TreeInput(session, TREE)])
    assert late.done == late.begun - 1
    return backend, session, scores


def test_scores_wait_for_their_pass(late: Late) -> None:
    want = np.stack([begun(late)[2].logits(row) for row in range(len(TREE))])
    ways: list[Callable[[Any], Any]] = [
        lambda scores: np.array_equal(scores.logits(3), want[3]),
        lambda scores: np.array_equal(scores.argmax(), want.argmax(1)),
        lambda scores: scores.topk(1)[0][2, 0] == want[2].argmax(),
        lambda scores: scores.follow(TREE, 0.0, lambda depth: 0)[1] in want.argmax(1),
        lambda scores: torch.equal(
            scores.hidden([0, 4], [1]), begun(late)[2].hidden(range(5), [1])[[0, 4]]
        ),
        lambda scores: np.array_equal(scores.after(2).logits(0), want[2]),
    ]
    for way in ways:
        scores: Any = begun(late)[2]
        assert scores.overlaps_host
        assert way(scores)
        assert late.done == late.begun


@pytest.mark.parametrize("act", ["commit", "rewind", "fork", "close", "score", "move"])
def test_a_session_is_not_touched_while_a_pass_writes_to_it(act: str, late: Late) -> None:
    backend, session, scores = begun(late)
    deeds: dict[str, Callable[[], Any]] = {
        "commit": lambda: session.commit([0]),
        "rewind": lambda: session.rewind(2),
        "fork": session.fork,
        "close": session.close,
        "score": lambda: backend.score([TreeInput(session, TREE)])[0].argmax(),
        "move": lambda: backend.pool._follow(500),  # as when another session needs more memory
    }
    deeds[act]()
    assert late.done == late.begun
    assert np.array_equal(scores.logits(1), begun(late)[2].logits(1))


def test_what_was_begun_and_left_is_finished_by_helpers_and_caller() -> None:
    """The caller leaves at the first stage at which a helper is there, and comes back."""
    had = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(20):
            done: list[int] = []
            state = np.zeros(2, np.int64)
            task = ThreadTeam().begin(count, state, done, state)
            assert state[LEFT] == HAS
            assert state[ARRIVED] == 1
            task.finish()
            assert sorted(set(done)) == list(range(50))
            task.finish()  # which has nothing left to do
    finally:
        torch.set_num_threads(had)


def count(done: list[int], state: Any, worker: int, workers: int) -> int:
    """Fifty items, one after the other; the caller waits for the helper first, if it may leave."""
    if worker:
        state[ARRIVED] += 1
    while not worker and state[LEFT] == 1:
        time.sleep(0)
        if state[ARRIVED] == workers - 1:
            state[LEFT] = HAS
            return 0
    for item in range(50):
        if item not in done:
            done.append(item)
    return 0


def test_an_errand_is_finished_once_whoever_waits() -> None:
    times: list[int] = []

    def rest() -> None:
        time.sleep(0.01)
        times.append(1)

    task = AsyncTask(rest)
    task.then(lambda: times.append(2))
    waiting = [threading.Thread(target=task.finish) for _ in range(4)]
    for thread in waiting:
        thread.start()
    task.finish()
    assert times == [1, 2]
    for thread in waiting:
        thread.join()
    task.then(lambda: times.append(3))
    assert times == [1, 2, 3]


def test_a_failure_reaches_who_waits() -> None:
    task = AsyncTask(lambda: [][0])
    for _ in range(2):
        with pytest.raises(IndexError):
            task.finish()
