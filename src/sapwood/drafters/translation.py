"""Two vocabularies and what they share: a model that speaks one, seen as a model that speaks the other.

Tokens are compared by how they read inside a text, so that the signs which tokenizers use for a blank make
no difference. A token that both have is one token of either; any other is read as several of the model's own, and
never proposed: its logit lies so far below the rest that its probability is zero. What remains is a law over
the shared tokens, which any verifier may read (arXiv 2502.05202, token-level intersection).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.protocols import Backend, Chunk, Memory, Scores, Session, Words, Work
from sapwood.records import BackendInfo
from sapwood.tree import Tree

BROKEN = "\ufffd"  # what decoders show for bytes that are no whole character
ANCHOR = "\n"  # read before a text, so that a leading blank is read as inside a text
NEVER = -1e4  # logit of tokens that are not shared, below the best; finite, so that a ban on all others leaves a law
MARGIN = 256  # tokens of the model's context that are kept free for a tree


@dataclass
class Inside:
    """A tokenizer in the middle of a text."""

    words: Words

    @cached_property
    def lead(self) -> list[int]:
        """The anchor's tokens."""
        return self.words.encode(ANCHOR, whole=False)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text that something stands before."""
        whole = self.words.encode(ANCHOR + text, whole=False)
        size = len(self.lead)
        return whole[size:] if whole[:size] == self.lead else self.words.encode(text, whole=False)

    def show(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, special ones shown, where something stands before."""
        return self.words.show([*self.lead, *tokens])[len(self.words.show(self.lead)) :]

    def pieces(self) -> dict[str, int]:
        """Every token by its text, except those that are part of a character.

        Of several that read alike it is the one that the text is encoded to: sentence pieces have a second token for
        every plain letter, for texts that hold it as a byte.
        """
        found: dict[str, int] = {}
        for token in range(self.words.size):
            piece = self.show([token])
            if piece and BROKEN not in piece and (piece not in found or self.encode(piece) == [token]):
                found[piece] = token
        return found


class Table:
    """From the target's tokens to the model's own."""

    def __init__(self, ours: Words, theirs: Words) -> None:
        self.ours, self.theirs = Inside(ours), Inside(theirs)
        mine, other = self.ours.pieces(), self.theirs.pieces()
        shared = sorted((other[piece], mine[piece]) for piece in other.keys() & mine.keys())
        if not shared:
            raise SapwoodError("the draft model shares no token with the target; use the drafter universal")
        self.target, self.own = np.array(shared, np.int64).T  # [shared] ids in either vocabulary
        self._read: dict[int, list[int]] = {target: [own] for target, own in shared}

    def read(self, token: int) -> list[int]:
        """The target's token in the model's own; some token where it has no text."""
        if token not in self._read:
            self._read[token] = self.ours.encode(self.theirs.show([token])) or [int(self.own[0])]
        return self._read[token]


@dataclass
class TranslatedScores:
    """The model's answer over the target's vocabulary."""

    scores: Scores
    rows: list[int]  # of `scores`, one per node
    table: Table
    vocab: int  # of the target

    def logits(self, row: int) -> FloatArray:
        """Logits of the shared tokens; all others never come."""
        known = self.scores.logits(self.rows[row])[self.table.own]
        logits = np.full(self.vocab, known.max() + NEVER)
        logits[self.table.target] = known
        return logits

    def argmax(self) -> IntArray:
        """Best next token of each node."""
        return self.topk(1)[0][:, 0]

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens and their log-probabilities, among the shared ones."""
        known = np.stack([self.scores.logits(row)[self.table.own].astype(np.float64) for row in self.rows])
        best = np.argsort(-known, axis=1, kind="stable")[:, :count]
        known -= known.max(axis=1, keepdims=True)
        known -= np.log(np.exp(known).sum(axis=1, keepdims=True))
        return self.table.target[best], np.take_along_axis(known, best, axis=1)

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Of another model: nothing that the target's heads could read."""
        raise SapwoodError("a translated model shows no hidden states; use the model itself")


@dataclass
class TranslatedSession:
    """The target's tokens, and the model's session on what they say."""

    tokens: list[int]
    model: "Translated"
    read: list[int]  # committed in the model's own tokens
    inner: Session
    tree: Tree | None = None  # the last scored tree in the model's own tokens
    paths: list[list[int]] = field(default_factory=list)  # node of the target's tree -> its own nodes

    @property
    def length(self) -> int:
        """Committed tokens, of the target."""
        return len(self.tokens)

    def reading(self, last: int) -> Scores | None:
        """Nothing: the prompt was read in other tokens."""
        return None

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the last scored tree."""
        assert self.tree is not None
        own = [node for place in path for node in self.paths[place]]
        self.tokens += [self.said[place] for place in path]
        self.read += self.tree.tokens[own].tolist()
        self.inner.commit(own)
        self.tree = None

    def rewind(self, length: int) -> None:
        """Forget the tail, by reading the rest again."""
        other = self.model.open(self.tokens[:length])
        self.inner.close()
        self.tokens, self.read, self.inner, self.tree = other.tokens, other.read, other.inner, None

    def fork(self) -> "TranslatedSession":
        """An independent session with the same text."""
        return TranslatedSession(list(self.tokens), self.model, list(self.read), self.inner.fork())

    def close(self) -> None:
        """Free the model's session."""
        self.inner.close()

    def add(self, tree: Tree, since: int) -> int:
        """Put the target's nodes from `since` on into the model's tree; where its own new nodes begin."""
        start = 0 if self.tree is None else len(self.tree)
        for node in range(since, len(tree)):
            own = self.model.table.read(int(tree.tokens[node]))
            if node == 0:
                self.tree, self.paths = Tree(own[0]), [[0]]
            else:
                self.paths.append([])
            assert self.tree is not None
            parent = self.paths[int(tree.parents[node])][-1] if node else 0
            for token in own if node else own[1:]:
                parent = self.tree.add(parent, token, 1.0, sampled=True)
                self.paths[node].append(parent)
        self.said: list[int] = tree.tokens.tolist()
        return start


@dataclass
class Translated:
    """A model with a tokenizer of its own as a backend over the target's vocabulary."""

    backend: Backend
    table: Table
    target: BackendInfo

    @property
    def info(self) -> BackendInfo:
        """The model, with the target's vocabulary; a text beyond its own context is read from its last part."""
        return replace(
            self.backend.info, vocab=self.target.vocab, context=self.target.context, provides=frozenset[str]()
        )

    def open(self, tokens: Sequence[int]) -> TranslatedSession:
        """A session on the text of these tokens."""
        read = self.table.ours.words.encode(self.table.theirs.words.show(list(tokens)))
        return TranslatedSession(list(tokens), self, *self._begin(read))

    def _begin(self, read: list[int]) -> tuple[list[int], Session]:
        """The last part of a text that leaves room, and a session on it."""
        room = self.backend.info.context - self._margin
        read = read[-(room // 2) :] if len(read) > room else read
        return read, self.backend.open(read)

    @property
    def _margin(self) -> int:
        return min(MARGIN, self.backend.info.context // 4)

    def watch(self, layers: Sequence[int]) -> None:
        """Not of another model."""
        raise SapwoodError("a translated model shows no hidden states; use the model itself")

    @property
    def memory(self) -> Memory:
        """The model's own."""
        return self.backend.memory

    def start(self, tokens: Sequence[int], tenant: str = "") -> TranslatedSession:
        """The whole session: what a text reads like in other tokens is not known piece by piece."""
        return self.open(tokens)

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """One pass of the model over each tree in its own tokens."""
        if chunks:
            raise SapwoodError("a translated text is read whole; open it instead of reading chunks")
        return [self._score(item) for item in work]

    def _score(self, work: Work) -> Scores:
        session = work.session
        assert isinstance(session, TranslatedSession)
        if work.since == 0:
            session.tree = None
            if session.inner.length + self._margin > self.backend.info.context:
                session.inner.close()
                session.read, session.inner = self._begin(session.read)
        start = session.add(work.tree, work.since)
        assert session.tree is not None
        [scores] = self.backend.score([Work(session.inner, session.tree, start)])
        rows = [session.paths[node][-1] - start for node in range(work.since, len(work.tree))]
        return TranslatedScores(scores, rows, self.table, self.target.vocab)
