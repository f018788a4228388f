"""A backend over recorded texts: it looks the target's outputs up, and runs no model.

The output of a lossless recipe does not depend on the drafts, so the recorded text holds the
target's own token at every position, for any such recipe. Top tokens of rows on the text were
recorded too, and those of rejected nodes if the same node was checked then. Drafters that learn
from rejected nodes may need others: with the model loaded it scores them again; without it the row
of the same token that was recorded last before is used, and the replay is marked near. Hidden
states are not recorded: with the model loaded, each text is prefilled once.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import (
    Backend,
    Capabilities,
    PrefillChunk,
    Session,
    TargetOutput,
    TreeInput,
)
from sapwood.core.tree import ROOT, Tree, check_path
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.trace.rounds import Trace

Key = tuple[int, tuple[int, ...]]  # last position on the text, and the tokens that leave it there
Row = tuple[IntArray, FloatArray]  # top tokens and their log probs
When = tuple[int, int]  # prompt and position


class RecordedText:
    """One recorded text: the tokens, and the target's output by row."""

    def __init__(self, number: int, tokens: Sequence[int], prompt: int) -> None:
        self.number = number
        self.tokens = list(tokens)
        self.prompt = prompt
        self.rows: dict[Key, Row] = {}
        self.read: TargetOutput | None = None  # output of the loaded model over the whole text
        # layers -> states of the text on the device, [n, layers * width]
        self.states: dict[tuple[int, ...], Any] = {}

    def place(self, tree: Tree, length: int) -> list[Key]:
        """The row key of each node of a tree whose root is the text's token at `length`."""
        if self.tokens[length : length + 1] != [int(tree.tokens[ROOT])]:
            raise SapwoodError(
                f"token {tree.tokens[ROOT]} at position {length} is not the recorded text's"
            )
        keys: list[Key] = [(length, ())]
        for node in range(1, len(tree)):
            anchor, tail = keys[tree.parents[node]]
            token = int(tree.tokens[node])
            straight = not tail and self.tokens[anchor + 1 : anchor + 2] == [token]
            keys.append((anchor + 1, ()) if straight else (anchor, (*tail, token)))
        return keys

    def best(self, key: Key) -> int | None:
        """The target's own next token; None if it is not recorded."""
        anchor, tail = key
        if not tail and anchor + 1 < len(self.tokens):
            return self.tokens[anchor + 1]
        row = self.rows.get(key)
        return None if row is None else int(row[0][0])

    def hidden(self, layers: Sequence[int]) -> Any:
        """States of the whole text at these layers."""
        if (found := self.states.get(tuple(layers))) is None:
            assert self.read is not None
            found = self.states[tuple(layers)] = self.read.hidden(range(len(self.tokens)), layers)
        return found

    def last(self, key: Key) -> int:
        """The token of a row."""
        anchor, tail = key
        return tail[-1] if tail else self.tokens[anchor]


class RecordedBackend:
    """All texts of a trace as a backend."""

    def __init__(self, trace: Trace, live: Backend | None = None) -> None:
        self.watched: set[int] = set()  # layers that drafters look at
        # the model itself, where it is at hand: its weights are used, and each text is read once
        self.live = live
        self.top = trace.rounds[0].probs.tokens.shape[1] if trace.rounds else 0
        # token -> recorded rows of it, the oldest first
        self.spares: dict[int, list[tuple[When, Row]]] = {}
        self.substituted = 0  # rows that were replaced by another
        self.overlapped = any(one.beside for one in trace.rounds)  # passes ran beside the host
        self.known = [self._learn(trace, asked.prompt) for asked in trace.asked]
        self.memory = BlockAllocator()
        self._info = dataclasses.replace(trace.header.info, name="replay", provides=provided(live))
        self._opened = {tuple(known.tokens[: known.prompt - 1]): known for known in self.known}

    @property
    def info(self) -> BackendInfo:
        """Info of the recorded target; provides hidden states if the model is loaded."""
        return self._info

    @property
    def capabilities(self) -> Capabilities:
        """The loaded model's own, as far as trained drafters use them; none without a model."""
        if self.live is None:
            return Capabilities()
        able = self.live.capabilities
        return Capabilities(
            model=able.model,
            layers=able.layers,
            embedding=able.embedding,
            network=able.network,
            run_derived=able.run_derived,
            # on other devices trees would stay there
            tree_builder=able.tree_builder if self.live.info.device == "cpu" else None,
        )

    def _learn(self, trace: Trace, prompt: int) -> RecordedText:
        asked = trace.asked[prompt]
        known = RecordedText(prompt, [*asked.tokens, *trace.answer(prompt)], len(asked.tokens))
        if (read := asked.reading) is not None:
            first = len(asked.tokens) - 1 - len(read.tokens)
            for row, (tokens, logps) in enumerate(zip(read.tokens, read.logps, strict=True)):
                self._keep(known, (first + row, ()), (tokens, logps), 0)
        for one in trace.of(prompt):
            keys = known.place(one.tree, one.context)
            for key, tokens, logps in zip(keys, one.probs.tokens, one.probs.logps, strict=True):
                self._keep(known, key, (tokens, logps), one.context)
        return known

    def _keep(self, known: RecordedText, key: Key, row: Row, position: int) -> None:
        known.rows[key] = row
        self.spares.setdefault(known.last(key), []).append(((known.number, position), row))

    def row(self, known: RecordedText, key: Key, count: int) -> Row:
        """The top tokens of a row, or of the recorded row that replaces it."""
        if count > self.top:
            raise SapwoodError(
                f"a drafter asks for the {count} best tokens, and the trace holds {self.top}; "
                f"record it again with --top {count}"
            )
        found = known.rows.get(key)
        if found is None:
            self.substituted += 1
            spares = self.spares.get(known.last(key), [])
            now = (known.number, key[0])
            place = bisect.bisect_right(spares, now, key=lambda spare: spare[0])
            found = (
                spares[place - 1][1] if place else (np.arange(self.top), np.full(self.top, -np.inf))
            )
        return found[0][:count], found[1][:count]

    # --------------------------------------------------------------------------------- waist
    def open(self, tokens: Sequence[int]) -> "RecordedSession":
        """A session on a recorded prompt without its last token."""
        known = self._opened.get(tuple(tokens))
        if known is None:
            raise SapwoodError(
                f"a prompt of {len(tokens) + 1} tokens is not in the trace; record it first"
            )
        if self.live is not None:
            self._read(self.live, known)
        return RecordedSession(self, known, len(tokens))

    def start(self, tokens: Sequence[int], tenant: str = "") -> "RecordedSession":
        """The same as `open`: there is nothing to prefill."""
        return self.open(tokens)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Look up the rows of all trees; commits nothing."""
        if chunks:
            raise SapwoodError("a replay has no prefill in chunks; open the prompts")
        found: list[TargetOutput] = []
        for one in work:
            assert isinstance(one.session, RecordedSession)
            found.append(one.session.score(one.tree, one.since))
        return found

    def watch(self, layers: Sequence[int]) -> None:
        """Keep these layers when the model prefills the texts."""
        if self.live is None:
            raise SapwoodError(
                "a trace holds no hidden states; replay this drafter with the model at hand"
            )
        self.live.watch(layers)
        if not self.watched.issuperset(layers):
            self.watched.update(layers)
            for known in self.known:  # prefilled without these layers
                known.read = None
                known.states = {}

    def _read(self, live: Backend, known: RecordedText) -> None:
        """Have the model read a text, if drafters look at its states and it was not read yet."""
        if self.watched and known.read is None:
            session = live.open(known.tokens)
            known.read = session.prefill_output(len(known.tokens))
            session.close()


class RecordedSession:
    """A position in a recorded text."""

    def __init__(self, texts: RecordedBackend, known: RecordedText, length: int) -> None:
        self.texts = texts
        self.known = known
        self._length = length
        self._fresh = True  # nothing was committed since it was opened
        self._scored: tuple[Tree, list[Key]] | None = None
        self._asked: Session | None = None  # of the loaded model, for rows that were not recorded

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self._length

    def ask(self, tree: Tree, keys: list[Key]) -> None:
        """Let the loaded model score a tree of which some rows were not recorded."""
        live = self.texts.live
        assert live is not None
        length = keys[ROOT][0]
        if self._asked is None:
            self._asked = live.open(self.known.tokens[:length])
        elif missing := self.known.tokens[self._asked.length : length]:
            live.score([TreeInput(self._asked, line(missing))])
            self._asked.commit(range(len(missing)))
        [scores] = live.score([TreeInput(self._asked, tree)])
        for key, *row in zip(keys, *scores.topk(self.texts.top), strict=True):
            self.known.rows.setdefault(key, tuple(row))

    def prefill_output(self, last: int) -> "RecordedOutput | None":
        """The target's output over the last prompt tokens, as far as it was recorded."""
        keys: list[Key] = [
            (place, ()) for place in range(max(self._length - last, 0), self._length)
        ]
        if not self.texts.watched:  # without hidden states, only recorded rows have content
            keys = [key for key in keys if key in self.known.rows]
        return RecordedOutput(self, keys) if keys and self._fresh else None

    def score(self, tree: Tree, since: int) -> "RecordedOutput":
        """The rows of a tree from `since` on."""
        keys = self.known.place(tree, self._length)
        self._scored = tree, keys
        return RecordedOutput(self, keys[since:], tree)

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the last scored tree, which must lie on the text."""
        if self._scored is None:
            raise ValueError("nothing was scored since the last commit")
        tree, keys = self._scored
        check_path(path, tree.parents)
        if keys[path[-1]][1]:
            raise ValueError(f"cannot commit {list(path)}: it leaves the recorded text")
        self._move(self._length + len(path))

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`."""
        self._move(length)

    def _move(self, length: int) -> None:
        self._length = length
        self._fresh = False
        self._scored = None

    def fork(self) -> "RecordedSession":
        """Refused: another continuation of the text was not recorded."""
        raise SapwoodError(
            "this drafter asks the target about texts of its own, which no trace holds; run it"
        )

    def close(self) -> None:
        """Close the loaded model's session."""
        if self._asked is not None:
            self._asked.close()


class RecordedOutput(TargetOutput):
    """The target's recorded output at some rows."""

    def __init__(self, session: RecordedSession, keys: list[Key], tree: Tree | None = None) -> None:
        self._session = session
        self._texts = session.texts
        self._known = session.known
        self._keys = keys
        self._tree = tree

    @property
    def overlaps_host(self) -> bool:
        """True if the recorded passes overlapped the host."""
        return self._texts.overlapped

    def argmax(self) -> IntArray:
        """The target's own next token of each row; -1 if it is not recorded."""
        found = [self._known.best(key) for key in self._keys]
        return np.array([-1 if token is None else token for token in found], np.int64)

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Top next tokens of each row."""
        whole = self._tree is not None and len(self._tree) == len(self._keys)
        if (
            self._texts.live is not None
            and whole
            and any(key not in self._known.rows for key in self._keys)
        ):
            assert self._tree is not None
            self._session.ask(self._tree, self._keys)
        rows = [self._texts.row(self._known, key, count) for key in self._keys]
        return np.stack([tokens for tokens, _ in rows]), np.stack([logps for _, logps in rows])

    def logits(self, row: int) -> FloatArray:
        """Refused: a trace holds only the top tokens of a row."""
        raise SapwoodError(
            f"this part reads whole distributions, and a trace holds {self._texts.top} tokens "
            "of each; run it"
        )

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of rows on the text, [rows, layers * width]."""
        keys = [self._keys[row] for row in rows]
        if any(tail for _, tail in keys):
            raise SapwoodError(
                "this drafter reads states of rejected nodes, which no trace holds; run it"
            )
        return self._known.hidden(layers)[[anchor for anchor, _ in keys]]


def line(tokens: Sequence[int]) -> Tree:
    """A tree that is one path."""
    tree = Tree(tokens[0], capacity=len(tokens))
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 1.0, sampled=True)
    return tree


def provided(live: Backend | None) -> frozenset[str]:
    """Names of the outputs that the replay provides to drafters."""
    return frozenset({"hidden"} & live.info.provides) if live is not None else frozenset()
