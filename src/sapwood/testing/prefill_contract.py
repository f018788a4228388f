"""The contract of prefill in chunks, and of KV memory.

`CHECKS` only need memory that counts; those of `LIMITED` set a limit, so each needs a backend of
its own and another one, without limits, to compare with.
"""

import gc
from collections.abc import Callable, Sequence

import numpy as np

from sapwood.core.protocols import Backend, PrefillChunk, Session, TreeInput
from sapwood.errors import OutOfMemory
from sapwood.testing.texts import (
    Check,
    after,
    agree,
    prompt,
    random_tree,
    refuses,
    run,
    table,
    text,
)

Limited = Callable[[Backend, Backend, np.random.Generator, float], None]
ROOM = 112  # tokens that a limited backend has room for


def feed(
    backend: Backend, session: Session, tokens: Sequence[int], rng: np.random.Generator
) -> None:
    """Prefill a text in chunks of random size."""
    while session.length < len(tokens):
        stop = session.length + int(rng.integers(1, 9))
        backend.score((), [PrefillChunk(session, tokens[session.length : stop])])


def blocks(backend: Backend, tokens: int) -> int:
    """Blocks of a text."""
    return -(-tokens // backend.memory.block)


# -------------------------------------------------------------------------- unlimited memory
def chunks_equal_open(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A text prefilled in chunks equals one opened at once, prefill output included."""
    start = prompt(backend, rng)
    tree = random_tree(backend, rng)
    session = backend.start(start)
    whole = backend.open(start)
    assert session.length == 0, "a text that was never read must be read from its beginning"
    feed(backend, session, start, rng)
    assert backend.score((), [PrefillChunk(session, [])]) == [], "chunks are not scored"
    assert session.length == len(start), "chunks must be committed"
    read = session.prefill_output(3)
    wanted = whole.prefill_output(3)
    assert read is not None, "chunks must be known"
    assert wanted is not None, "an opened text must be known"
    assert read.argmax().tolist() == wanted.argmax().tolist(), (
        "chunks must be known as an opened text is"
    )
    agree(
        run(backend, session, tree), run(backend, whole, tree), tolerance, "chunks must equal open"
    )
    session.commit(tree.path(len(tree) - 1))
    assert session.prefill_output(3) is None, "prefill_output must end with the first commit"
    found = run(backend, session, tree)
    wanted_rows = run(backend, backend.open([*start, *tree.spell(len(tree) - 1)]), tree)
    agree(
        found,
        wanted_rows,
        tolerance,
        "what follows chunks must commit like what follows an opened text",
    )


def chunks_join_trees(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """Trees and chunks of one pass do not see each other."""
    texts = [prompt(backend, rng) for _ in range(4)]
    trees = [random_tree(backend, rng, n) for n in (5, 9)]
    sessions = [
        backend.open(texts[0]),
        backend.open(texts[1]),
        backend.start(texts[2]),
        backend.start(texts[3]),
    ]
    work = [TreeInput(*pair) for pair in zip(sessions, trees, strict=False)]
    rows = backend.score(
        work, [PrefillChunk(sessions[2], texts[2][:3]), PrefillChunk(sessions[3], texts[3])]
    )
    for start, tree, scores in zip(texts, trees, rows, strict=False):
        wanted = run(backend, backend.open(start), tree)
        agree(
            table(scores, len(tree)),
            wanted,
            tolerance,
            "chunks must not change the trees of their pass",
        )
    sessions[0].commit(trees[0].path(4))
    grown = TreeInput(sessions[0], trees[1])
    [scores] = backend.score([grown], [PrefillChunk(sessions[2], texts[2][3:])])
    wanted = run(backend, backend.open([*texts[0], *trees[0].spell(4)]), trees[1])
    agree(
        table(scores, len(trees[1])),
        wanted,
        tolerance,
        "a commit beside a chunk must keep its own rows",
    )
    for start, session in zip(texts[2:], sessions[2:], strict=True):
        wanted = run(backend, backend.open(start), trees[0])
        agree(
            run(backend, session, trees[0]),
            wanted,
            tolerance,
            "trees must not change the chunks of their pass",
        )


def forks_know_the_text(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A fork before the first commit keeps the prefill output, independent of its origin."""
    session = backend.open(prompt(backend, rng))
    tree = random_tree(backend, rng, 3)
    fork = session.fork()
    run(backend, session, tree)
    session.commit([0])
    read = fork.prefill_output(2)
    length = fork.length
    assert read is not None, "a fork must know the text"
    assert len(read.argmax()) == 2, "reading must give the rows asked for"
    agree(
        run(backend, fork, tree),
        run(backend, fork.fork(), tree),
        tolerance,
        "a fork of a fork must be the same",
    )
    assert fork.length == length == session.length - 1, "a fork must not move with its origin"


def memory_counts(backend: Backend, rng: np.random.Generator, _: float) -> None:
    """Memory of open sessions is counted, and that of a tree is freed with its commit."""
    memory = backend.memory
    start = text(backend, rng, 40)
    tree = random_tree(backend, rng)
    gc.collect()  # sessions that earlier checks have left open
    before = memory.used
    session = backend.open(start)
    assert memory.used - before >= blocks(backend, len(start)), "a text must be counted"
    run(backend, session, tree)
    session.commit([0])
    held = memory.used - before
    other = session.fork()
    assert memory.used - before <= 2 * held, "a fork must not hold more than its origin"
    session.close()
    run(backend, other, tree)
    other.close()
    assert memory.used == before, "closed sessions must give back all they held"
    assert memory.fits(len(start)), "what was there must fit again"


def chunk_misuse_is_refused(backend: Backend, rng: np.random.Generator, _: float) -> None:
    """Calls that would corrupt a session raise an error instead."""
    tree = random_tree(backend, rng, 3)
    session = backend.open(prompt(backend, rng))
    piece = text(backend, rng, 3)
    twice = [PrefillChunk(session, piece), PrefillChunk(session, piece)]
    refuses(
        lambda: backend.score((), twice), "two chunks of one session in one pass must be refused"
    )
    refuses(
        lambda: backend.score([TreeInput(session, tree)], twice[:1]),
        "a chunk beside its own tree must be refused",
    )
    far = PrefillChunk(session, [0] * backend.info.context)
    refuses(lambda: backend.score((), [far]), "a chunk beyond the context must be refused")
    session.close()
    refuses(lambda: backend.score((), twice[:1]), "a chunk of a closed session must be refused")


CHECKS: tuple[Check, ...] = (
    chunks_equal_open,
    chunks_join_trees,
    forks_know_the_text,
    memory_counts,
    chunk_misuse_is_refused,
)


# ---------------------------------------------------------------------------- limited memory
def full_memory_changes_nothing(
    backend: Backend, free: Backend, rng: np.random.Generator, tolerance: float
) -> None:
    """A pass without room is refused as a whole, without side effects."""
    backend.memory.limit(ROOM)
    start = text(backend, rng, 30)
    long = text(backend, rng, 50)
    tree = random_tree(backend, rng, 9)
    session = backend.open(start)
    other = backend.open(long)
    run(backend, session, tree)
    used = backend.memory.used
    assert not backend.memory.fits(ROOM), "what is held must not be promised"
    for work, chunks in (
        ([TreeInput(session, tree)], [PrefillChunk(other, long[:40])]),
        ([TreeInput(other, random_tree(backend, rng, 45))], ()),
        ((), [PrefillChunk(session, long[:8]), PrefillChunk(other, long)]),
    ):
        try:
            backend.score(work, chunks)
        except OutOfMemory:
            pass
        else:
            raise AssertionError("a pass that has no room must be refused")
        assert (session.length, other.length) == (30, 50), "a refused pass must commit nothing"
        assert backend.memory.used == used, "a refused pass must hold nothing"
    session.commit(tree.path(8))
    probe = random_tree(backend, rng, 4)
    path = tree.spell(8)
    wanted = run(free, free.open([*start, *path]), probe)
    agree(
        run(backend, session, probe),
        wanted,
        tolerance,
        "a refused pass must leave the tree in flight",
    )
    other.close()
    backend.score((), [PrefillChunk(session, long[:40])])
    wanted = run(free, free.open([*start, *path, *long[:40]]), probe)
    agree(
        run(backend, session, probe),
        wanted,
        tolerance,
        "what was refused must run when there is room",
    )
    session.close()
    assert backend.memory.used == 0, "closed sessions must give back all they held"


def a_text_too_long_leaves_nothing(
    backend: Backend, _: Backend, rng: np.random.Generator, __: float
) -> None:
    """A text that memory has no room for is not opened, and none of it stays in use."""
    backend.memory.limit(ROOM)
    refuses(
        lambda: backend.open(text(backend, rng, ROOM + 8)), "a text without room must be refused"
    )
    assert backend.memory.used == 0, "a text that was not opened must hold nothing"
    backend.open(text(backend, rng, ROOM // 2)).close()
    assert backend.memory.used == 0, "closed sessions must give back all they held"


def what_is_known_is_taken_up(
    backend: Backend, free: Backend, rng: np.random.Generator, tolerance: float
) -> None:
    """A text of the same tenant begins with the cached blocks of an earlier one."""
    backend.memory.limit(ROOM)
    first = text(backend, rng, 37)
    rest = text(backend, rng, 9)
    tree = random_tree(backend, rng, 7)
    session = backend.start(first, "one")
    feed(backend, session, first, rng)
    run(backend, session, tree)
    session.commit(tree.path(6))
    committed = [*first, *tree.spell(6)]
    session.close()
    assert backend.memory.used == 0, "what is kept for later must not count as used"
    assert backend.start([*committed, *rest], "two").length == 0, (
        "a tenant must know nothing of another's texts"
    )
    block = backend.memory.block
    kept = len(committed) // block * block if backend.memory.cached else 0
    again = backend.start([*committed, *rest], "one")
    assert again.length == kept, "all full blocks of the same text must be taken up"
    whole = [*committed, *rest]
    feed(backend, again, whole, rng)
    read = again.prefill_output(len(whole))
    wanted = free.open(whole).prefill_output(len(whole))
    assert read is not None, "a text must be known"
    assert wanted is not None, "a text must be known"
    assert read.argmax().tolist() == wanted.argmax().tolist(), (
        "what was taken up must be known as if it were read"
    )
    agree(
        run(backend, again, tree),
        run(free, free.open(whole), tree),
        tolerance,
        "what was taken up must be right",
    )


def memory_holds_together(
    backend: Backend, free: Backend, rng: np.random.Generator, tolerance: float
) -> None:
    """Sessions open, grow, fork, rewind and close at random, with too little memory for all."""
    backend.memory.limit(ROOM)
    beginnings = [text(backend, rng, 24) for _ in range(2)]
    living: list[tuple[Session, list[int]]] = []
    for _ in range(60):
        try:
            step(backend, free, rng, tolerance, living, beginnings)
        except OutOfMemory:
            if living:
                living.pop(int(rng.integers(len(living))))[0].close()
        assert all(session.length == len(held) for session, held in living), (
            "a refused step must change nothing"
        )
        assert backend.memory.used + backend.memory.cached <= blocks(backend, ROOM), (
            "the limit must hold"
        )
    for session, _ in living:
        session.close()
    assert backend.memory.used == 0, "closed sessions must give back all they held"


def step(
    backend: Backend,
    free: Backend,
    rng: np.random.Generator,
    tolerance: float,
    living: list[tuple[Session, list[int]]],
    beginnings: Sequence[list[int]],
) -> None:
    """One random operation on the open sessions, each with its expected text."""
    choice = int(rng.integers(6)) if living else 0
    if choice == 0:
        begun = [
            *beginnings[int(rng.integers(2))][: int(rng.integers(8, 25))],
            *text(backend, rng, 3),
        ]
        session = backend.start(begun)
        held = begun[: session.length]
        living.append((session, held))
        backend.score((), [PrefillChunk(session, begun[len(held) :])])
        held[:] = begun
        return
    place = int(rng.integers(len(living)))
    session, held = living[place]
    if choice == 1:
        living.append((session.fork(), list(held)))
    elif choice == 2:
        length = int(rng.integers(len(held) + 1))
        session.rewind(length)
        del held[length:]
    elif choice == 3:
        living.pop(place)[0].close()
    else:
        tree = random_tree(backend, rng, int(rng.integers(1, 12)))
        node = int(rng.integers(len(tree)))
        found = run(backend, session, tree)
        agree(
            found[node],
            after(free, [*held, *tree.spell(node)]),
            tolerance,
            "blocks must hold their own text",
        )
        session.commit(tree.path(node))
        held += tree.spell(node)


LIMITED: tuple[Limited, ...] = (
    full_memory_changes_nothing,
    a_text_too_long_leaves_nothing,
    what_is_known_is_taken_up,
    memory_holds_together,
)


def check_memory(make: Callable[[], Backend], seed: int = 0, tolerance: float = 1e-4) -> None:
    """Run every check that sets a limit, each on a backend of its own."""
    for check in LIMITED:
        check(make(), make(), np.random.default_rng(seed), tolerance)
