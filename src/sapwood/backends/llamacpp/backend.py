"""Backend of GGUF models through the low-level interface of llama.cpp.

The tree becomes sequence ids: one per leaf, and each node carries those of the leaves below it, so
one decode scores the whole tree. A commit keeps one of these sequences.
"""

from collections.abc import Sequence

import numpy as np

from sapwood.backends.llamacpp.kv_context import ROWS, DecodeRows, KvContext
from sapwood.backends.llamacpp.output import LlamaCppOutput
from sapwood.backends.llamacpp.session import LlamaCppSession
from sapwood.backends.llamacpp.weights import GgufModel
from sapwood.backends.prefill import prefill
from sapwood.core.array_types import IntArray
from sapwood.core.protocols import Capabilities, PrefillChunk, TargetOutput, TreeInput
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError

NODES = 128  # of one tree, so at most as many leaves; llama.cpp has 256 sequences
READ = 64  # last rows of a prompt whose logits are kept for drafters


class LlamaCppBackend:
    """Scores token trees with llama.cpp."""

    capabilities = Capabilities()  # none: llama.cpp does not expose the weights

    def __init__(self, weights: GgufModel, name: str, *, threads: int, device: str = "cpu") -> None:
        self.weights = weights
        self.memory = KvContext(weights, threads)
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

    def open(self, tokens: Sequence[int]) -> LlamaCppSession:
        """A session with these tokens committed; logits are kept of the last ones only."""
        session = self.start(tokens)
        prefill(self, session, tokens, ROWS)
        return session

    def start(self, tokens: Sequence[int], tenant: str = "") -> LlamaCppSession:
        """An empty session for these tokens: there is no prefix cache."""
        count = len(tokens)
        context = self.info.context
        if count > context:
            raise SapwoodError(
                f"a text of {count} tokens does not fit the model's context of {context}"
            )
        return LlamaCppSession(self.memory, meant=count)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Run the chunks one by one, then one pass over all trees; row i is node `since + i`."""
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._check(work, chunks)
        for chunk in chunks:
            self._read(self._own(chunk), np.asarray(chunk.tokens, np.int64))
        sessions = [self._own(job) for job in work]
        if not work:
            return []
        try:
            begun = [
                session.begin(job.tree, job.since)
                for session, job in zip(sessions, work, strict=True)
            ]
            logits = self.memory.decode(joined(begun), sum(len(rows.tokens) for rows in begun))
        except SapwoodError:
            for session in sessions:
                session.drop()
            raise
        counts = [len(rows.tokens) for rows in begun]
        parts = np.split(logits, np.cumsum(counts)[:-1])
        return [
            LlamaCppOutput(part, session.ranks(job.since))
            for part, session, job in zip(parts, sessions, work, strict=True)
        ]

    def _check(self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk]) -> None:
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

    def _read(self, session: LlamaCppSession, tokens: IntArray) -> None:
        """Commit a chunk of a prompt; logits are kept of the last rows of the whole prompt."""
        # tokens of the prompt that follow this chunk
        after = session.meant - session.length - len(tokens)
        rows = session.extend(tokens)
        session.learn(
            self.memory.decode(rows, min(max(READ - max(after, 0), 0), len(tokens))), len(tokens)
        )

    def watch(self, layers: Sequence[int]) -> None:
        """Refused: llama.cpp gives no hidden states."""
        raise SapwoodError("the llama.cpp backend has no hidden states; use the torch backend")

    def _own(self, job: TreeInput | PrefillChunk) -> LlamaCppSession:
        session = job.session
        if not isinstance(session, LlamaCppSession) or session.memory is not self.memory:
            raise TypeError("a session is scored by the backend that opened it")
        return session

    def _check_room(self, need: int) -> None:
        if need > self.info.context:
            raise SapwoodError(
                f"a tree that ends at token {need} does not fit the context of {self.info.context}"
            )


def joined(parts: Sequence[DecodeRows]) -> DecodeRows:
    """The rows of several trees as one."""
    if len(parts) == 1:
        return parts[0]
    tokens = np.concatenate([part.tokens for part in parts])
    positions = np.concatenate([part.positions for part in parts])
    return DecodeRows(tokens, positions, [lanes for part in parts for lanes in part.lanes])
