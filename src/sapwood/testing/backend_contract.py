"""The contract of the waist, as checks for any backend.

Every check compares two ways to the same context: a tree and its paths, a commit and a fresh
session, one call and several. A wrong mask, position or cache shows as different logits.
"""

import numpy as np

from sapwood.core.protocols import Backend, TreeInput
from sapwood.core.tree import Tree
from sapwood.testing import prefill_contract
from sapwood.testing.texts import (
    Check,
    after,
    agree,
    line,
    prompt,
    random_tree,
    refuses,
    run,
    table,
    text,
)

__all__ = [
    "CHECKS",
    "Check",
    "after",
    "agree",
    "check_backend",
    "line",
    "random_tree",
    "run",
    "table",
    "text",
]


def check_backend(backend: Backend, seed: int = 0, tolerance: float = 1e-4) -> None:
    """Run every check; an AssertionError names the broken rule. `tolerance` is on logits."""
    for check in CHECKS:
        check(backend, np.random.default_rng(seed), tolerance)


def chain_equals_steps(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A chain scored at once equals scoring token by token."""
    start = prompt(backend, rng)
    tokens = text(backend, rng, 5)
    together = run(backend, backend.open(start), line(tokens))
    session = backend.open(start)
    steps = []
    for token in tokens:
        steps.append(run(backend, session, Tree(token))[0])
        session.commit([0])
    agree(together, np.stack(steps), tolerance, "a chain must equal sequential passes")
    assert session.length == len(start) + len(tokens), "length must count committed tokens"


def tree_equals_paths(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """Each node of a tree has the output of its own path alone; so position is depth."""
    for nodes in (2, 5, 14):
        start = prompt(backend, rng)
        tree = random_tree(backend, rng, nodes)
        rows = run(backend, backend.open(start), tree)
        for node in range(len(tree)):
            alone = after(backend, [*start, *tree.spell(node)])
            agree(
                rows[node], alone, tolerance, f"node {node} of {nodes} must see its own path only"
            )


def order_of_siblings_is_free(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """Adding the same branches in another order changes no node's output."""
    start = prompt(backend, rng)
    tokens = text(backend, rng, 4)
    first = Tree(tokens[0])
    second = Tree(tokens[0])
    for tree, order in ((first, (1, 2, 3)), (second, (3, 1, 2))):
        for i in order:
            tree.add(tree.add(0, tokens[i], 1.0, sampled=True), tokens[-i], 1.0, sampled=True)
    one, two = (run(backend, backend.open(start), tree) for tree in (first, second))
    agree(
        one[[1, 2, 3, 4, 5, 6]],
        two[[3, 4, 5, 6, 1, 2]],
        tolerance,
        "the order of siblings must not matter",
    )


def commit_equals_open(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """After committing a path, a session equals one opened on the longer text."""
    start = prompt(backend, rng)
    session = backend.open(start)
    for _ in range(3):
        tree = random_tree(backend, rng, 9)
        run(backend, session, tree)
        path = tree.path(int(rng.integers(len(tree))))
        session.commit(path)
        start = [*start, *tree.tokens[path].tolist()]
        probe = random_tree(backend, rng, 6)
        wanted = run(backend, backend.open(start), probe)
        agree(
            run(backend, session, probe),
            wanted,
            tolerance,
            "commit(path) must equal open(text + path)",
        )
    assert session.length == len(start), "length must count committed tokens"


def scoring_commits_nothing(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A second tree scored on a session gives what it gives on a fresh one."""
    start = prompt(backend, rng)
    session = backend.open(start)
    tree = random_tree(backend, rng, 6)
    run(backend, session, random_tree(backend, rng, 12))
    found = run(backend, session, tree)
    agree(found, run(backend, backend.open(start), tree), tolerance, "score must commit nothing")


def rewind_equals_open(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A rewound session equals one opened on the shorter text."""
    start = prompt(backend, rng)
    tree = random_tree(backend, rng, 6)
    session = backend.open(start)
    run(backend, session, line(text(backend, rng, 3)))
    session.commit([0, 1])
    for length in (len(start), len(start) // 2, 0):
        session.rewind(length)
        assert session.length == length, "rewind must set the length"
        wanted = run(backend, backend.open(start[:length]), tree)
        agree(
            run(backend, session, tree),
            wanted,
            tolerance,
            "rewind must forget the tail and nothing else",
        )


def fork_is_independent(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """Two forks of a session are independent."""
    start = prompt(backend, rng)
    left = random_tree(backend, rng, 6)
    right = random_tree(backend, rng, 6)
    one = backend.open(start)
    two = one.fork()
    run(backend, one, left)
    run(backend, two, right)
    one.commit([0])
    two.commit([0])
    found = run(backend, one, right)
    agree(
        found,
        run(backend, backend.open([*start, *left.spell(0)]), right),
        tolerance,
        "a fork must not move its origin",
    )
    one.close()
    found = run(backend, two, left)
    agree(
        found,
        run(backend, backend.open([*start, *right.spell(0)]), left),
        tolerance,
        "a fork must outlive its origin",
    )


def growing_equals_at_once(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A tree scored in parts, as it grows, equals one scored at once, and commits the same."""
    start = prompt(backend, rng)
    whole = random_tree(backend, rng, 12)
    session = backend.open(start)
    grown = Tree(int(whole.tokens[0]))
    parts = []
    for since, until in ((0, 1), (1, 4), (4, 12)):
        for node in range(max(since, 1), until):
            grown.add(int(whole.parents[node]), int(whole.tokens[node]), 1.0, sampled=True)
        parts.append(run(backend, session, grown, since))
    agree(
        np.concatenate(parts),
        run(backend, backend.open(start), whole),
        tolerance,
        "since=k must equal scoring at once",
    )
    session.commit(grown.path(11))
    tail = random_tree(backend, rng, 4)
    wanted = run(backend, backend.open([*start, *whole.spell(11)]), tail)
    agree(
        run(backend, session, tail),
        wanted,
        tolerance,
        "a grown tree must commit like one scored at once",
    )


def sessions_are_apart(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """Several sessions of different lengths in one pass give the outputs of separate passes."""
    starts = [text(backend, rng, count) for count in (0, 3, 11)]
    trees = [random_tree(backend, rng, nodes) for nodes in (4, 1, 9)]
    sessions = [backend.open(start) for start in starts]
    rows = backend.score([TreeInput(*pair) for pair in zip(sessions, trees, strict=True)])
    for scores, start, tree in zip(rows, starts, trees, strict=True):
        wanted = run(backend, backend.open(start), tree)
        agree(
            table(scores, len(tree)),
            wanted,
            tolerance,
            "sessions of one pass must not see each other",
        )
    sessions[2].commit(trees[2].path(8))
    probe = [TreeInput(sessions[2], trees[0]), TreeInput(sessions[1], trees[2], 0)]
    scores = backend.score(probe)[0]
    wanted = run(backend, backend.open([*starts[2], *trees[2].spell(8)]), trees[0])
    agree(
        table(scores, len(trees[0])),
        wanted,
        tolerance,
        "a commit after a shared pass must keep its own rows",
    )


def empty_text_opens(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """A session may start empty: the root is then the first token."""
    session = backend.open([])
    tokens = text(backend, rng, 2)
    assert session.length == 0, "an empty session has no length"
    rows = run(backend, session, line(tokens))
    agree(rows[1], after(backend, tokens), tolerance, "an empty session must start at position 0")


def answers_agree(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """argmax, topk and logits are consistent."""
    tree = random_tree(backend, rng, 4)
    [scores] = backend.score([TreeInput(backend.open(prompt(backend, rng)), tree)])
    all_probs = table(scores, len(tree))
    count = min(3, backend.info.vocab)
    tokens, logps = scores.topk(count)
    assert tokens.shape == logps.shape == (len(tree), count), "topk must give [n, count]"
    assert all_probs.shape[1] == backend.info.vocab, "logits must cover info.vocab"
    best = np.array([np.argmax(scores.logits(row)) for row in range(len(tree))])
    assert np.array_equal(scores.argmax(), best), (
        "argmax must be the best logit, the lowest id of equals"
    )
    assert np.array_equal(tokens[:, 0], best), "topk must start with argmax"
    agree(
        logps,
        np.take_along_axis(all_probs, tokens, axis=1),
        tolerance,
        "topk must give log-probabilities",
    )
    agree(
        logps,
        -np.sort(-all_probs, axis=1)[:, :count],
        tolerance,
        "topk must give the best tokens, best first",
    )


def reading_knows_the_text(backend: Backend, rng: np.random.Generator, tolerance: float) -> None:
    """The prefill's output has the best next tokens of the text, until the first commit."""
    start = prompt(backend, rng)
    tree = random_tree(backend, rng, 2)
    session = backend.open(start)
    read = session.prefill_output(3)
    assert read is not None, "a text that was just read must be known"
    best = read.argmax()
    assert len(best) == 3, "reading must give the rows asked for"
    for row, token in enumerate(best):
        probs = after(backend, start[: len(start) - 2 + row])
        assert probs[token] >= probs.max() - tolerance, "reading must name the best next token"
    run(backend, session, tree)
    session.commit([0])
    assert session.prefill_output(3) is None, "prefill_output must end with the first commit"


def misuse_is_refused(backend: Backend, rng: np.random.Generator, _: float) -> None:
    """Calls that would corrupt a session raise an error instead."""
    start = prompt(backend, rng)
    tree = Tree(*text(backend, rng, 1))
    for token in text(backend, rng, 2):
        tree.add(0, token, 1.0, sampled=True)
    session = backend.open(start)
    refuses(lambda: session.commit([0]), "commit without a scored tree must be refused")
    run(backend, session, tree)
    refuses(lambda: session.commit([0, 1, 2]), "commit of nodes that are no path must be refused")
    refuses(lambda: session.commit([1]), "commit of a path without the root must be refused")
    session.commit([0, 2])
    refuses(lambda: session.commit([0]), "commit of the same tree twice must be refused")
    refuses(lambda: session.rewind(len(start) + 3), "rewind beyond the length must be refused")
    session.close()
    refuses(lambda: backend.score([TreeInput(session, tree)]), "use after close must be refused")


CHECKS: tuple[Check, ...] = (
    chain_equals_steps,
    tree_equals_paths,
    order_of_siblings_is_free,
    commit_equals_open,
    scoring_commits_nothing,
    rewind_equals_open,
    fork_is_independent,
    growing_equals_at_once,
    sessions_are_apart,
    empty_text_opens,
    answers_agree,
    reading_knows_the_text,
    misuse_is_refused,
    *prefill_contract.CHECKS,
)
