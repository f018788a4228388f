"""Sessions of the CUDA path: which slots a commit, a fork and a rewind leave, for trees on the host and on the device."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree, to_device_tree
from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.kv_pool import CHUNK, CudaKvPool, KvSequence
from sapwood.backends.torch.cuda.pass_inputs import NOTHING, PendingMove
from sapwood.backends.torch.cuda.session import CudaSession, UnmovedPath
from sapwood.backends.torch.kv_slots import KvLayout
from sapwood.core.tree import Tree
from tests.helpers import slot_moves

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def plain_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    slot_moves.use(monkeypatch)


@pytest.fixture
def pool() -> CudaKvPool:
    return CudaKvPool(1, HeadSizes(2, 1, 2), torch.zeros(1), 64)


def opened(pool: CudaKvPool, length: int) -> CudaSession:
    """A session that has committed so many tokens; slot i holds the number i."""
    session = CudaSession(KvSequence(pool, KvLayout(), length))
    session.extend(length)
    write(session, 0, range(length))
    session.advance(length)
    return session


def write(session: CudaSession, start: int, numbers: Sequence[int]) -> None:
    """What a pass does: write rows to the slots from `start` on."""
    rows = torch.tensor(list(numbers), dtype=torch.float32)[None, :, None, None]
    kept = session.sequence.pool.kept
    with torch.inference_mode():
        kept[:, session.sequence.index, start : start + len(numbers)] = rows


def held(session: CudaSession, count: int) -> list[int]:
    """The numbers in the first slots of the session's seat."""
    kept = session.sequence.pool.kept[:, session.sequence.index, :count]
    assert (kept == kept[:1, :, :1, :1]).all()  # all planes alike
    session.sequence.pool.run_moves()
    return [int(number) for number in kept[0, :, 0, 0]]


def bush() -> Tree:
    """Root 0 with children 1, 2, 3; 4 below 2, 5 below 4."""
    tree = Tree(7)
    for parent, token in ((0, 10), (0, 11), (0, 12), (2, 13), (4, 14)):
        tree.add(parent, token, 0.5)
    return tree


def on_device(tree: Tree, path: Sequence[int] = ()) -> DeviceTree:
    """The same tree on the device, whose walk has found this path."""
    moved = to_device_tree(tree, CPU)
    moved.round_use.path = tuple(path)
    moved.round_use.round_buffer.path[: len(path)] = torch.tensor(list(path), dtype=torch.int64)
    return moved


def score(session: CudaSession, tree: Tree) -> None:
    """Begin a host tree, write its rows as 100 + node, and note that it was scored."""
    session.begin(tree, 0)
    write(session, session.length, range(100, 100 + len(tree)))
    session.scored(tree, {})


def track_device_tree(session: CudaSession, tree: DeviceTree) -> PendingMove:
    """The same for a tree on the device; what its pass had to move first."""
    moved = session.prepare(tree)
    facts = torch.zeros(8, dtype=torch.int64)
    facts[:6] = torch.tensor([session.sequence.first, session.length, len(tree), *moved])
    session.sequence.pool.keep(tree.round_use.round_buffer.path, facts)
    write(session, session.length, range(100, 100 + len(tree)))
    session.track_device_tree(tree)
    return moved


# ------------------------------------------------------------------------------- trees on the host
def test_rows_of_a_tree_lie_behind_the_text(pool: CudaKvPool) -> None:
    session = opened(pool, 5)
    tree = bush()
    block, span = session.begin(tree, 0)
    assert (span.start, span.rows) == (5, 6)
    assert span.slots is session.sequence
    assert (block.length, block.since) == (5, 0)
    assert block.positions.tolist() == [5, 6, 6, 6, 7, 8]


def test_a_committed_path_moves_to_the_end_of_the_text(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    score(session, bush())
    session.commit([0, 2, 4])
    assert session.length == 6
    assert held(session, 6) == [0, 1, 2, 100, 102, 104]


def test_a_path_that_lies_in_place_is_not_moved(
    pool: CudaKvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(pool, 3)
    score(session, bush())
    monkeypatch.setattr(CudaKvPool, "move", lambda *args: pytest.fail("nothing is to be moved"))
    session.commit([0, 1])
    assert held(session, 5) == [0, 1, 2, 100, 101]


@pytest.mark.parametrize(
    ("path", "reason"), [([0, 4], "path"), ([1], "path"), ([0, 6], "scored"), ([], "path")]
)
def test_what_is_no_path_is_refused_and_changes_nothing(
    pool: CudaKvPool, path: list[int], reason: str
) -> None:
    session = opened(pool, 3)
    score(session, bush())
    with pytest.raises(ValueError, match=reason):
        session.commit(path)
    assert session.length == 3
    session.commit([0, 3])
    assert held(session, 5) == [0, 1, 2, 100, 103]


def test_the_tail_is_scored_in_parts(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    tree = bush()
    score(session, tree)
    tree.add(5, 15, 0.5)
    block, span = session.begin(tree, 6)
    assert (span.start, span.rows, block.rows) == (9, 1, 1)
    with pytest.raises(ValueError, match="leaves nothing to score"):
        session.begin(tree, 7)


# ----------------------------------------------------------------------------- trees on the device
def test_a_path_walked_on_the_device_is_moved_by_the_next_pass(
    pool: CudaKvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(pool, 3)
    tree = on_device(bush(), [0, 2, 4])
    assert track_device_tree(session, tree) == NOTHING
    session.commit([0, 2, 4])
    assert session.length == 6
    assert held(session, 6) == [0, 1, 2, 100, 101, 102]  # not yet
    again = DeviceTree(
        type(tree.round_use).begin(tree.round_use.round_buffer, 3), 6, lambda words: bush()
    )
    moved = track_device_tree(session, again)
    assert moved == PendingMove(3, 1, 3)
    assert held(session, 6) == [0, 1, 2, 100, 102, 104]
    assert held(session, 12)[6:] == [100, 101, 102, 103, 104, 105]
    monkeypatch.setattr(CudaKvPool, "move", lambda *args: pytest.fail("the pass has moved it"))
    tree.round_use.round_buffer.run_deferred()


@pytest.mark.parametrize("act", ["begin", "extend", "fork", "rewind"])
def test_a_path_is_in_place_before_anything_else_is_done(pool: CudaKvPool, act: str) -> None:
    session = opened(pool, 3)
    track_device_tree(session, on_device(bush(), [0, 2, 4]))
    session.commit([0, 2, 4])
    if act == "begin":
        session.begin(Tree(5), 0)
    elif act == "extend":
        session.extend(2)
    elif act == "fork":
        session = session.fork()
    else:
        session.rewind(6)
    assert held(session, 6) == [0, 1, 2, 100, 102, 104]


def test_a_tree_of_another_buffer_has_the_path_moved_before_its_pass(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    track_device_tree(session, on_device(bush(), [0, 2]))
    session.commit([0, 2])
    assert session.prepare(on_device(bush())) == NOTHING
    assert held(session, 5) == [0, 1, 2, 100, 102]


def test_a_closed_session_moves_nothing_any_more(
    pool: CudaKvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(pool, 3)
    tree = on_device(bush(), [0, 2, 4])
    track_device_tree(session, tree)
    session.commit([0, 2, 4])
    monkeypatch.setattr(CudaKvPool, "move", lambda *args: pytest.fail("the seat is not ours"))
    before = session.closed
    session.close()
    tree.round_use.round_buffer.run_deferred()
    assert (before, session.closed) == (False, True)
    assert pool.used == 0
    with pytest.raises(ValueError, match="this session is closed; open a new one"):
        _ = session.sequence


def test_the_beginning_of_a_walked_path_is_committed_too(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    track_device_tree(session, on_device(bush(), [0, 2, 4, 5]))
    session.commit([0, 2])
    session.rewind(5)
    assert held(session, 5) == [0, 1, 2, 100, 102]


def test_another_path_than_the_walked_one_is_checked_on_the_host(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    tree = on_device(bush(), [0, 2, 4])
    track_device_tree(session, tree)
    with pytest.raises(ValueError, match="path"):
        session.commit([0, 5])
    session.commit([0, 3])
    assert held(session, 5) == [0, 1, 2, 100, 103]


def test_a_believed_tree_can_be_grown_and_scored_on(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    tree = on_device(bush())
    track_device_tree(session, tree)
    more = bush()
    more.add(5, 99, 0.5)
    block, span = session.begin(more, 6)
    assert (span.start, span.rows, block.rows) == (9, 1, 1)
    other = Tree(8)
    other.add(0, 1, 0.5)
    with pytest.raises(ValueError, match="not those scored earlier"):
        session.begin(other, 1)


def test_committing_beside_a_pass_that_was_launched_leaves_the_move_to_it(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    track_device_tree(session, on_device(bush(), [0, 2, 4]))
    session.prelaunched_pass = object()
    session.commit([0, 2, 4])
    session.rewind(6)  # nothing is owed
    assert held(session, 6) == [0, 1, 2, 100, 101, 102]


def test_behind_a_launched_pass_only_the_walked_path_can_be_committed(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    track_device_tree(session, on_device(bush(), [0, 2, 4]))
    session.prelaunched_pass = object()
    with pytest.raises(RuntimeError, match="commit that path"):
        session.commit([0, 3])
    assert session.length == 3


# --------------------------------------------------------------------------------------- the text
def test_a_fork_has_the_text_and_goes_its_own_way(pool: CudaKvPool) -> None:
    session = opened(pool, 4)
    other = session.fork()
    assert other.length == 4
    assert other.sequence.index != session.sequence.index
    score(other, Tree(3))
    other.commit([0])
    assert held(other, 5) == [0, 1, 2, 3, 100]
    assert session.length == 4
    assert held(session, 5)[4] == 0


def test_rewinding_is_checked(pool: CudaKvPool) -> None:
    session = opened(pool, 4)
    for length in (-1, 5):
        with pytest.raises(ValueError, match=f"cannot rewind a session of 4 tokens to {length}"):
            session.rewind(length)
    session.rewind(2)
    assert session.length == 2
    block, span = session.extend(3)
    assert (span.start, span.rows) == (2, 3)
    assert block.positions.tolist() == [2, 3, 4]


def test_slots_grow_for_a_tree_behind_a_long_text(pool: CudaKvPool) -> None:
    session = opened(pool, 62)
    score(session, bush())
    assert pool.slots >= 68
    assert held(session, 62) == list(range(62))


@pytest.mark.parametrize(("moved", "fits"), [((0, 0, CHUNK), True), ((0, 0, CHUNK + 1), False)])
def test_a_path_too_long_for_one_launch_is_not_left_to_a_pass(
    moved: tuple[int, int, int], fits: bool
) -> None:
    tree = on_device(bush())
    round_buffer = tree.round_use.round_buffer
    path = UnmovedPath(lambda: None, round_buffer, PendingMove(*moved))
    assert path.fits(round_buffer) == fits
    assert not path.fits(on_device(bush()).round_use.round_buffer)


def test_columns_of_a_believed_tree_are_copies(pool: CudaKvPool) -> None:
    session = opened(pool, 3)
    plain = bush()
    track_device_tree(session, on_device(plain))
    before = plain.tokens.copy()
    more = bush()
    more.add(5, 99, 0.5)
    session.begin(more, 6)
    plain.tokens[:] = 0
    session.check(more, 6)
    assert not np.array_equal(before, plain.tokens)
