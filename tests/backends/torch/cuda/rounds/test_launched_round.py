"""The results of a round on the device, read on the host."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.rounds.launched_round import (
    TREE,
    CudaRound,
    ResultColumns,
    RoundTree,
)

COLUMNS = ResultColumns(depth=2, rows=4)


class SessionStub:
    """A session that counts its tokens."""

    def __init__(self, *, closed: bool = False) -> None:
        self.length = 10
        self.closed = closed

    def advance(self, rows: int) -> None:
        assert not self.closed
        self.length += rows


def words_of(*verdict: int) -> torch.Tensor:
    """The words of one request: a verdict, then a tree of four nodes."""
    tree = {
        "tokens": [5, 6, 7, 8],
        "parents": [-1, 0, 0, 2],
        "depths": [0, 1, 1, 2],
        "ranks": [0, 0, 1, 0],
    }
    real = {"probs": [1.0, 0.5, 0.25, 0.5], "reach": [1.0, 0.5, 0.25, 0.125]}
    columns = [np.array(tree[name]) for name in TREE[:4]]
    columns += [np.array(real[name]).view(np.int64) for name in TREE[4:]]
    head = [*verdict, *[0] * (COLUMNS.path - len(verdict))]
    return torch.from_numpy(np.concatenate([head, *columns]))


def launched(*sessions: SessionStub) -> tuple[CudaRound, list[Any]]:
    """A round of two requests; the first took a path of three nodes, the other its root alone."""
    rounds: Any = SimpleNamespace(device=torch.device("cpu"), features=torch.ones(2, 16, 3))
    caches = [SimpleNamespace(text=4) for _ in sessions]
    given: Any = sessions
    held: Any = caches
    made = CudaRound(rounds, COLUMNS, 2, given, held, sources=[1, 1], draft_seconds=0.5)
    rounds.last = made
    made.send(torch.stack([words_of(3, 40, 0, 2, 3), words_of(1, 41, 0)]))
    made.record()
    return made, caches


def test_paths_are_committed_once() -> None:
    sessions = SessionStub(), SessionStub()
    made, caches = launched(*sessions)
    made.followed = {0}
    first, second = made.read()
    made.read()
    assert (first.context, first.verdict.path, first.verdict.bonus) == (10, (0, 2, 3), 40)
    assert second.verdict.path == (0,)
    assert [session.length for session in sessions] == [13, 11]
    # the head has read the path of the request that goes on
    assert [cache.text for cache in caches] == [7, 4]


def test_a_session_that_was_closed_meanwhile_is_left_alone() -> None:
    ended = SessionStub(closed=True)
    made, _ = launched(ended, SessionStub())
    made.read()
    assert ended.length == 10


def test_trees_are_loaded_when_more_than_their_tokens_is_read() -> None:
    made, _ = launched(SessionStub(), SessionStub())
    tree = made.read()[0].tree
    assert isinstance(tree, RoundTree)
    assert tree.tokens.tolist() == [5, 6, 7, 8]
    assert "_parents" not in vars(tree)
    assert tree.parents.tolist() == [-1, 0, 0, 2]
    assert tree.reach.tolist() == [1.0, 0.5, 0.25, 0.125]
    assert tree.sources.tolist() == [0, 2, 2, 2]


def test_hidden_states_are_there_until_the_next_round() -> None:
    made, _ = launched(SessionStub(), SessionStub())
    output = made.output(0)
    assert output.hidden((0, 2, 3), (0, 1, 2)).shape == (3, 3)
    rounds: Any = made.rounds
    rounds.last = None
    with pytest.raises(ValueError, match="overwrote"):
        output.hidden((0,), (0, 1, 2))
    with pytest.raises(ValueError, match="overwrote"):
        output.logits(0)
