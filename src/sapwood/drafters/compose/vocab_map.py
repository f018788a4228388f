"""Maps a model of one vocabulary to the tokens that it shares with another vocabulary.

Tokens are compared by their text inside a sentence, so that the characters which tokenizers use for
a blank make no difference. A token of both vocabularies is translated to one token; any other
becomes several of the model's own and is never proposed: its logit is so far below the rest that
its probability is zero. The result is a distribution over the shared tokens, which any verifier can
use (arXiv 2502.05202, token-level intersection).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import (
    Backend,
    Capabilities,
    KvMemory,
    PrefillChunk,
    Session,
    TargetOutput,
    TokenizerLike,
    TreeInput,
)
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError

BROKEN = "\ufffd"  # what decoders show for bytes that are no whole character
ANCHOR = "\n"  # read before a text, so that a leading blank is read as inside a text
# logit of tokens that are not shared, below the best; finite, so that a distribution is left even
# where all shared tokens are banned
NEVER = -1e4
MARGIN = 256  # tokens of the model's context that are kept free for a tree


@dataclass
class MidTextTokenizer:
    """A tokenizer in the middle of a text."""

    words: TokenizerLike

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

        Of several that read alike it is the one that the text is encoded to: sentence pieces have a
        second token for every plain letter, for texts that hold it as a byte.
        """
        found: dict[str, int] = {}
        for token in range(self.words.size):
            piece = self.show([token])
            if (
                piece
                and BROKEN not in piece
                and (piece not in found or self.encode(piece) == [token])
            ):
                found[piece] = token
        return found


class VocabMap:
    """From the target's tokens to the model's own."""

    def __init__(self, ours: TokenizerLike, theirs: TokenizerLike) -> None:
        self.ours, self.theirs = MidTextTokenizer(ours), MidTextTokenizer(theirs)
        mine = self.ours.pieces()
        other = self.theirs.pieces()
        shared = sorted((other[piece], mine[piece]) for piece in other.keys() & mine.keys())
        if not shared:
            raise SapwoodError(
                "the draft model shares no token with the target; use the drafter universal"
            )
        self.target, self.own = np.array(shared, np.int64).T  # [shared] ids in either vocabulary
        self._read: dict[int, list[int]] = {target: [own] for target, own in shared}

    def read(self, token: int) -> list[int]:
        """The target's token in the model's own; some token where it has no text."""
        if token not in self._read:
            self._read[token] = self.ours.encode(self.theirs.show([token])) or [int(self.own[0])]
        return self._read[token]


@dataclass
class TranslatedOutput(TargetOutput):
    """The model's output over the target's vocabulary."""

    scores: TargetOutput
    rows: list[int]  # of `scores`, one per node
    table: VocabMap
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
        known = np.stack(
            [self.scores.logits(row)[self.table.own].astype(np.float64) for row in self.rows]
        )
        best = np.argsort(-known, axis=1, kind="stable")[:, :count]
        known -= known.max(axis=1, keepdims=True)
        known -= np.log(np.exp(known).sum(axis=1, keepdims=True))
        return self.table.target[best], np.take_along_axis(known, best, axis=1)

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Of another model: nothing that the target's heads could read."""
        raise SapwoodError("a translated model shows no hidden states; use the model itself")


@dataclass
class TranslatedSession:
    """The target's tokens, and the model's session on their text."""

    tokens: list[int]
    model: "TranslatedBackend"
    read: list[int]  # committed in the model's own tokens
    inner: Session
    tree: Tree | None = None  # the last scored tree in the model's own tokens
    # node of the target's tree -> its own nodes
    paths: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Committed tokens, of the target."""
        return len(self.tokens)

    def prefill_output(self, last: int) -> TargetOutput | None:
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
        self.tokens = other.tokens
        self.read = other.read
        self.inner = other.inner
        self.tree = None

    def fork(self) -> "TranslatedSession":
        """An independent session with the same text."""
        return TranslatedSession(list(self.tokens), self.model, list(self.read), self.inner.fork())

    def close(self) -> None:
        """Free the model's session."""
        self.inner.close()

    def add(self, tree: Tree, since: int) -> int:
        """Add the target's nodes from `since` on to the model's tree; its first new node."""
        start = 0 if self.tree is None else len(self.tree)
        for node in range(since, len(tree)):
            own = self.model.table.read(int(tree.tokens[node]))
            if node == 0:
                self.tree = Tree(own[0])
                self.paths = [[0]]
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
class TranslatedBackend:
    """A model with a tokenizer of its own as a backend over the target's vocabulary."""

    backend: Backend
    table: VocabMap
    target: BackendInfo

    @property
    def capabilities(self) -> Capabilities:
        """None: its weights and sessions are over another vocabulary."""
        return Capabilities()

    @property
    def info(self) -> BackendInfo:
        """The model's info with the target's vocabulary; of a long text it sees the last part."""
        return replace(
            self.backend.info,
            vocab=self.target.vocab,
            context=self.target.context,
            provides=frozenset[str](),
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
    def memory(self) -> KvMemory:
        """The model's own."""
        return self.backend.memory

    def start(self, tokens: Sequence[int], tenant: str = "") -> TranslatedSession:
        """A session with all tokens: text cannot be encoded chunk by chunk."""
        return self.open(tokens)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass of the model over each tree in its own tokens."""
        if chunks:
            raise SapwoodError("a translated text is read whole; open it instead of reading chunks")
        return [self._score(item) for item in work]

    def _score(self, work: TreeInput) -> TargetOutput:
        session = work.session
        assert isinstance(session, TranslatedSession)
        if work.since == 0:
            session.tree = None
            if session.inner.length + self._margin > self.backend.info.context:
                session.inner.close()
                session.read, session.inner = self._begin(session.read)
        start = session.add(work.tree, work.since)
        assert session.tree is not None
        [scores] = self.backend.score([TreeInput(session.inner, session.tree, start)])
        rows = [session.paths[node][-1] - start for node in range(work.since, len(work.tree))]
        return TranslatedOutput(scores, rows, self.table, self.target.vocab)
