"""When the pass over the next tree can be launched before the host knows its root, and whose answer it is."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, RoundBuffer, RoundUse
from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.kv_pool import CHUNK, CudaKvPool, KvSequence
from sapwood.backends.torch.cuda.prelaunch import PassRunner, PrelaunchedPass
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.backends.torch.kv_slots import KvLayout

CONTEXT, SLOTS = 100, 80


class FakeNetwork:
    """Counts passes; says of every pass that it is frequent, unless told otherwise."""

    def __init__(self, pool: CudaKvPool) -> None:
        self.pool = pool
        self.count = 5
        self.frequent = True
        self.asked: list[tuple[int, int]] = []

    def is_frequent(self, nodes: int, length: int, path: Any) -> bool:
        self.asked.append((nodes, length))
        return self.frequent

    def prelaunch(self, rows: Any, path: Any, nodes: int, length: int, write_args: Any) -> int:
        self.count += 1
        write_args()
        return 1


class FakeBackend:
    """What a runner asks of a backend."""

    def __init__(self) -> None:
        self.fused = FakeNetwork(CudaKvPool(1, HeadSizes(2, 1, 2), torch.zeros(1), SLOTS))
        self.info = SimpleNamespace(context=CONTEXT)
        self._watched = {1, 3}

    def open(self, length: int) -> CudaSession:
        session = CudaSession(KvSequence(self.fused.pool, KvLayout(), length))
        session.advance(length)
        return session


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


def begin(depth: int = 4) -> RoundUse:
    return RoundUse.begin(RoundBuffer(torch.device("cpu")), depth)


def test_a_pass_can_be_launched_for_the_same_text(backend: FakeBackend) -> None:
    before = backend.open(3)
    session = backend.open(10)
    assert session.sequence.index > before.sequence.index
    runner = PassRunner(backend, session, begin(4))
    assert runner.first_slot(20, 4) == session.sequence.first == SLOTS * session.sequence.index
    assert backend.fused.asked == [(20, 15)]  # behind the text, the path and the next root


@pytest.mark.parametrize("change", ["closed", "longer", "rare"])
def test_nothing_is_launched_where_things_have_changed(backend: FakeBackend, change: str) -> None:
    session = backend.open(10)
    runner = PassRunner(backend, session, begin())
    if change == "closed":
        session.close()
    elif change == "longer":
        session.advance(1)
    else:
        backend.fused.frequent = False
    assert runner.first_slot(20, 4) is None


def test_nothing_is_launched_for_who_is_gone(backend: FakeBackend) -> None:
    session = backend.open(10)
    runner = PassRunner(backend, session, begin())
    round_buffer = RoundBuffer(torch.device("cpu"))
    del session
    assert runner.first_slot(20, 4) is None
    assert runner.prelaunch(round_buffer, 20, lambda: pytest.fail("nobody asks for it")) is None


def test_the_context_must_hold_the_deepest_next_tree(backend: FakeBackend) -> None:
    backend.fused.pool.reserve(1000)
    runner = PassRunner(backend, backend.open(85), begin(4))
    assert runner.stop == 90
    session = runner.session()
    assert session is None  # a runner does not keep a session alive
    held = backend.open(85)
    runner = PassRunner(backend, held, begin(4))
    assert runner.first_slot(5, 9) is not None
    assert runner.first_slot(5, 10) is None


def test_the_seat_must_hold_all_nodes(backend: FakeBackend) -> None:
    held = backend.open(40)
    runner = PassRunner(backend, held, begin(4))
    assert runner.first_slot(SLOTS - 45, 4) is not None
    assert runner.first_slot(SLOTS - 44, 4) is None


def test_trees_beyond_the_buffers_are_asked_for(backend: FakeBackend) -> None:
    backend.fused.pool.reserve(1000)
    held = backend.open(10)
    assert PassRunner(backend, held, begin()).first_slot(ROWS, 4) is not None
    assert PassRunner(backend, held, begin()).first_slot(ROWS + 1, 4) is None
    assert PassRunner(backend, held, begin(CHUNK - 1)).first_slot(20, 4) is not None
    assert PassRunner(backend, held, begin(CHUNK)).first_slot(20, 4) is None


# -------------------------------------------------------------------------------- whose answer it is
def launched(backend: FakeBackend, session: CudaSession) -> tuple[RoundUse, PrelaunchedPass]:
    runner = PassRunner(backend, session, begin())
    told: list[bool] = []
    round_buffer = RoundBuffer(torch.device("cpu"))
    prelaunched_pass = runner.prelaunch(round_buffer, 20, lambda: told.append(True))
    assert prelaunched_pass is not None
    assert told == [True]
    assert session.prelaunched_pass is prelaunched_pass
    turn = RoundUse.begin(round_buffer, 4)
    turn.prelaunched_pass = prelaunched_pass
    return turn, prelaunched_pass


def test_a_launched_pass_answers_the_question_it_was_launched_for(backend: FakeBackend) -> None:
    network: Any = backend.fused
    turn, prelaunched_pass = launched(backend, backend.open(10))
    assert (prelaunched_pass.nodes, prelaunched_pass.number, prelaunched_pass.buffer_index) == (
        20,
        6,
        1,
    )
    assert prelaunched_pass.matches(turn, 20, [3, 1], network)
    assert not prelaunched_pass.matches(turn, 19, [3, 1], network)
    assert not prelaunched_pass.matches(turn, 20, [1], network)


def test_a_pass_in_between_makes_the_answer_void(backend: FakeBackend) -> None:
    network: Any = backend.fused
    turn, prelaunched_pass = launched(backend, backend.open(10))
    backend.fused.count += 1
    assert not prelaunched_pass.matches(turn, 20, [1, 3], network)


def test_a_round_knows_its_own_pass_from_an_equal_one(backend: FakeBackend) -> None:
    network: Any = backend.fused
    turn, prelaunched_pass = launched(backend, backend.open(10))
    equal = PrelaunchedPass(
        prelaunched_pass.nodes,
        prelaunched_pass.watched,
        prelaunched_pass.number,
        prelaunched_pass.buffer_index,
    )
    assert not equal.matches(turn, 20, [1, 3], network)
    turn.prelaunched_pass = None
    assert not prelaunched_pass.matches(turn, 20, [1, 3], network)
