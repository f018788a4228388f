"""A backend of exact tables over a tiny vocabulary: the reference for the backend protocol.

The probs after a context are a fixed pseudo-random vector, a function of the whole context, so a
wrong mask, position or commit shows as wrong probs. Written to be read, not for speed. Its memory
holds no keys and values, but counts blocks as if it did.
"""

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import Capabilities, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, reserve


@functools.cache
def probs_after(salt: str, vocab: int, context: tuple[int, ...]) -> FloatArray:
    """Probs of the next token after a context, [vocab]."""
    digest = hashlib.sha256(f"{salt}{context}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little")).dirichlet([0.7] * vocab)


@dataclass
class ToyOutput(TargetOutput):
    """Log-probabilities of the scored nodes."""

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
        """Log-probabilities after this row's node."""
        probs: FloatArray = self.rows[row]
        return probs

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """A table has no hidden states."""
        raise SapwoodError("the toy backend has no hidden states")


@dataclass
class ToySession:
    """A list of tokens, the blocks they would lie in, and the last tree scored on it."""

    tokens: list[int]
    model: "ToyBackend"
    table: BlockTable
    tree: Tree | None = None
    closed: bool = False
    unread: int = 0  # first tokens without prefill output: they were committed from trees

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def prefill_output(self, last: int) -> TargetOutput | None:
        """Log-probabilities after each of the last tokens."""
        ends = range(max(self.length - last, self.unread), self.length)
        return self.model.scores([tuple(self.tokens[: end + 1]) for end in ends]) if ends else None

    def add(self, tokens: Sequence[int]) -> None:
        """Commit tokens, and free the blocks of the tree."""
        self.tokens += tokens
        self.table.commit(tokens)
        self.table.truncate(self.length)
        self.tree = None

    def commit(self, path: Sequence[int]) -> None:
        """Keep the tokens on this path of the last scored tree."""
        tree = self.tree
        if (
            tree is None
            or path[0] != ROOT
            or any(tree.parents[b] != a for a, b in itertools.pairwise(path))
        ):
            raise ValueError(f"{list(path)} is not a path from the root of the last scored tree")
        self.add(tree.tokens[list(path)].tolist())
        self.unread = self.length

    def rewind(self, length: int) -> None:
        """Drop committed tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind to {length}: the session holds {self.length} tokens")
        del self.tokens[length:]
        self.table.truncate(length)
        self.tree = None
        self.unread = length

    def fork(self) -> "ToySession":
        """An independent copy."""
        table, _ = self.table.fork(self.length)
        return ToySession(list(self.tokens), self.model, table, unread=self.unread)

    def close(self) -> None:
        """Free the blocks."""
        self.closed = True
        self.table.close()


@dataclass
class ToyBackend:
    """A model whose probs are looked up; `salt` names the table."""

    salt: str = "target"
    vocab: int = 3
    context: int = 4096
    passes: int = field(default=0, compare=False)
    memory: BlockAllocator = field(default_factory=BlockAllocator, compare=False, repr=False)

    @property
    def capabilities(self) -> Capabilities:
        """Look-ahead rows, whose ids are further tokens of the table; there is no model."""
        return Capabilities(lookahead=lambda _: self.salt)

    @property
    def info(self) -> BackendInfo:
        """A tiny vocabulary, exact arithmetic."""
        return BackendInfo(
            name="toy",
            model=f"toy-{self.salt}",
            vocab=self.vocab,
            context=self.context,
            provides=frozenset({"lookahead"}),
        )

    def open(self, tokens: Sequence[int]) -> ToySession:
        """A session with these tokens committed."""
        session = self.start(tokens)
        self._read([PrefillChunk(session, tokens[session.length :])])
        return session

    def start(self, tokens: Sequence[int], tenant: str = "") -> ToySession:
        """A session with the cached prefix of these tokens committed."""
        table = BlockTable(self.memory, tenant)
        return ToySession(list(tokens[: table.find(tokens)]), self, table)

    def watch(self, layers: Sequence[int]) -> None:
        """A table has no layers."""
        raise SapwoodError("the toy backend has no hidden states")

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Log-probabilities after each node's path, from `since` on; the chunks are committed."""
        trees = [own(job.session) for job in work]
        texts = [own(chunk.session) for chunk in chunks]
        if len({id(session) for session in (*trees, *texts)}) < len(work) + len(chunks):
            raise ValueError("one pass scores one tree, or reads one chunk, per session")
        if any(
            session.length + len(chunk.tokens) > self.context
            for session, chunk in zip(texts, chunks, strict=True)
        ):
            raise SapwoodError(
                f"a text of more than {self.context} tokens does not fit the toy's context"
            )
        tails = [job.rows for job in work] + [len(chunk.tokens) for chunk in chunks]
        both = zip((*trees, *texts), tails, strict=True)
        reserve([(session.table, session.length, session.length + tail) for session, tail in both])
        self.passes += 1
        self._read(chunks)
        return [self._score(item) for item in work]

    def _read(self, chunks: Sequence[PrefillChunk]) -> None:
        for chunk in chunks:
            session = own(chunk.session)
            reserve([(session.table, session.length, session.length + len(chunk.tokens))])
            session.add(chunk.tokens)

    def _score(self, work: TreeInput) -> ToyOutput:
        session = own(work.session)
        tree = work.tree
        session.tree = tree
        whole = tree if work.lookahead is None else work.lookahead.added_to(tree)
        found = self.scores(
            [(*session.tokens, *whole.spell(node)) for node in range(work.since, len(whole))]
        )
        if work.lookahead is None:
            return found
        nodes = len(tree) - work.since
        output = ToyOutput(found.rows[:nodes])
        output.lookahead = ToyOutput(found.rows[nodes:])
        return output

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        """Look up the probs after each context."""
        return ToyOutput(
            np.log([probs_after(self.salt, self.vocab, context) for context in contexts])
        )


def own(session: Session) -> ToySession:
    """The session as a `ToySession`, which must be open."""
    assert isinstance(session, ToySession)
    if session.closed:
        raise ValueError("the session is closed")
    return session
