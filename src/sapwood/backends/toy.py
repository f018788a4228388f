"""Exact tables over a tiny vocabulary: the living definition of the waist.

The law after a context is a fixed pseudo-random vector, a function of the whole context, so a
wrong mask, position or commit shows as a wrong law. Readable first, fast never.
"""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.protocols import Scores, Work
from sapwood.records import BackendInfo
from sapwood.tree import ROOT, Tree


@functools.cache
def law_after(salt: str, vocab: int, context: tuple[int, ...]) -> FloatArray:
    """The toy's law of the next token, [vocab]."""
    digest = hashlib.sha256(f"{salt}{context}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little")).dirichlet([0.7] * vocab)


@dataclass
class ToyScores:
    """Log-laws of the scored nodes."""

    rows: FloatArray  # [n, vocab]

    def argmax(self) -> IntArray:
        """Best next token of each node."""
        best: IntArray = np.argmax(self.rows, axis=1)
        return best

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens and their log-probabilities."""
        best = np.argsort(-self.rows, axis=1, kind="stable")[:, :count]
        return best, np.take_along_axis(self.rows, best, axis=1)

    def logits(self, row: int) -> FloatArray:
        """Log-law after this row's node."""
        law: FloatArray = self.rows[row]
        return law

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """A table has no hidden states."""
        raise SapwoodError("the toy backend has no hidden states")


@dataclass
class ToySession:
    """A list of tokens, and the last tree scored on it."""

    tokens: list[int]
    model: "Toy"
    tree: Tree | None = None
    closed: bool = False
    fresh: bool = True  # nothing was committed yet

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def reading(self, last: int) -> Scores | None:
        """The law after each of the last tokens."""
        ends = range(max(self.length - last, 0), self.length)
        if not self.fresh or not ends:
            return None
        return self.model.scores([tuple(self.tokens[: end + 1]) for end in ends])

    def commit(self, path: Sequence[int]) -> None:
        """Keep the tokens on this path of the last scored tree."""
        tree = self.tree
        if tree is None or path[0] != ROOT or any(tree.parents[b] != a for a, b in itertools.pairwise(path)):
            raise ValueError(f"{list(path)} is not a path from the root of the last scored tree")
        self.tokens += tree.tokens[list(path)].tolist()
        self.tree, self.fresh = None, False

    def rewind(self, length: int) -> None:
        """Forget the tail."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind to {length}: the session holds {self.length} tokens")
        del self.tokens[length:]
        self.tree = None

    def fork(self) -> "ToySession":
        """An independent copy."""
        return ToySession(list(self.tokens), self.model, fresh=False)

    def close(self) -> None:
        """Nothing is held; only marked, so that use after close is an error."""
        self.closed = True


@dataclass
class Toy:
    """A model whose laws are looked up; `salt` names the table."""

    salt: str = "target"
    vocab: int = 3
    context: int = 4096
    passes: int = field(default=0, compare=False)

    @property
    def info(self) -> BackendInfo:
        """A tiny vocabulary, exact arithmetic."""
        return BackendInfo(name="toy", model=f"toy-{self.salt}", vocab=self.vocab, context=self.context)

    def open(self, tokens: Sequence[int]) -> ToySession:
        """A session with these tokens committed."""
        return ToySession(list(tokens), self)

    def watch(self, layers: Sequence[int]) -> None:
        """A table has no layers."""
        raise SapwoodError("the toy backend has no hidden states")

    def score(self, work: Sequence[Work]) -> list[Scores]:
        """The law after each node's own path, from `since` on."""
        self.passes += 1
        return [self._score(item) for item in work]

    def _score(self, work: Work) -> ToyScores:
        session, tree = work.session, work.tree
        assert isinstance(session, ToySession)
        if session.closed:
            raise ValueError("the session is closed")
        session.tree = tree
        return self.scores([(*session.tokens, *tree.spell(node)) for node in range(work.since, len(tree))])

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyScores:
        """Look up the law after each context."""
        return ToyScores(np.log([law_after(self.salt, self.vocab, context) for context in contexts]))
