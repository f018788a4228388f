"""A GGUF model behind the waist, by the low-level interface of llama.cpp.

The tree becomes sequence ids: one per leaf, and each node carries those of the leaves below it, so
one decode scores the whole tree. A commit keeps one of these sequences.
"""

from collections.abc import Sequence

import numpy as np

from sapwood.arrays import IntArray
from sapwood.backends.llamacpp.memory import ROWS, Memory, Rows
from sapwood.backends.llamacpp.scores import HostScores
from sapwood.backends.llamacpp.session import LlamaSession
from sapwood.backends.llamacpp.weights import Weights
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.protocols import Chunk, Scores, Work
from sapwood.records import BackendInfo

NODES = 128  # of one tree: so many leaves at most, and the library tells 256 sequences apart
READ = 64  # last rows of a prompt whose logits are kept for drafters


class LlamaBackend:
    """Scores token trees with llama.cpp."""

    def __init__(self, weights: Weights, name: str, *, threads: int, device: str = "cpu") -> None:
        self.weights = weights
        self.memory = Memory(weights, threads)
        self.info = BackendInfo(
            name="llamacpp",
            model=name,
            vocab=weights.vocab,
            context=weights.context,
            max_nodes=NODES,
            device=device,
            dtype=weights.format,
            threads=threads,
        )

    def open(self, tokens: Sequence[int]) -> LlamaSession:
        """A session with these tokens committed; nothing is scored but the end of the text, for `reading`."""
        session = self.start(tokens)
        try:
            while rest := tokens[session.length : session.length + ROWS]:
                self.score((), [Chunk(session, rest)])
        except OutOfMemory:
            session.close()
            raise
        return session

    def start(self, tokens: Sequence[int], tenant: str = "") -> LlamaSession:
        """An empty session meant for these tokens: nothing is kept of closed ones."""
        count, context = len(tokens), self.info.context
        if count > context:
            raise SapwoodError(f"a text of {count} tokens does not fit the model's context of {context}")
        return LlamaSession(self.memory, meant=count)

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """The chunks one after the other, then one pass over all trees; row i of a result is node `since + i`."""
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._check(work, chunks)
        for chunk in chunks:
            self._read(self._own(chunk), np.asarray(chunk.tokens, np.int64))
        sessions = [self._own(job) for job in work]
        if not work:
            return []
        try:
            begun = [session.begin(job.tree, job.since) for session, job in zip(sessions, work, strict=True)]
            logits = self.memory.decode(joined(begun), sum(len(rows.tokens) for rows in begun))
        except SapwoodError:
            for session in sessions:
                session.drop()
            raise
        counts = [len(rows.tokens) for rows in begun]
        parts = np.split(logits, np.cumsum(counts)[:-1])
        return [
            HostScores(part, session.ranks(job.since)) for part, session, job in zip(parts, sessions, work, strict=True)
        ]

    def _check(self, work: Sequence[Work], chunks: Sequence[Chunk]) -> None:
        """Refuse what cannot be run before anything is changed."""
        wanted: dict[int, int] = {}  # name of a session -> cells it will need
        for job in work:
            session = self._own(job)
            session.check(job.tree, job.since)
            self._check_room(session.length + job.tree.height + 1)
            wanted[session.name] = session.length + len(job.tree)
        for chunk in chunks:
            session = self._own(chunk)
            session.check_open()
            self._check_room(session.length + len(chunk.tokens))
            wanted[session.name] = session.length + len(chunk.tokens)
        if len(wanted) < len(work) + len(chunks):
            raise ValueError("one pass scores one tree per session, or reads one chunk")
        self.memory.check(wanted)

    def _read(self, session: LlamaSession, tokens: IntArray) -> None:
        """Commit a piece of a prompt; of the last rows of the text that was meant, logits are kept."""
        after = session.meant - session.length - len(tokens)  # tokens of the text that are still to come
        rows = session.extend(tokens)
        session.learn(self.memory.decode(rows, min(max(READ - max(after, 0), 0), len(tokens))), len(tokens))

    def watch(self, layers: Sequence[int]) -> None:
        """The library shows no layer's input."""
        raise SapwoodError("the llama.cpp backend has no hidden states; use the torch backend")

    def _own(self, job: Work | Chunk) -> LlamaSession:
        session = job.session
        if not isinstance(session, LlamaSession) or session.memory is not self.memory:
            raise TypeError("a session is scored by the backend that opened it")
        return session

    def _check_room(self, need: int) -> None:
        if need > self.info.context:
            raise SapwoodError(f"a tree that ends at token {need} does not fit the context of {self.info.context}")


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several trees as one."""
    if len(parts) == 1:
        return parts[0]
    tokens = np.concatenate([part.tokens for part in parts])
    positions = np.concatenate([part.positions for part in parts])
    return Rows(tokens, positions, [lanes for part in parts for lanes in part.lanes])
