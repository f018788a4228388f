"""A backend over recorded texts: it answers what the target is known to have said, and runs no model.

A lossless recipe says the same whatever is drafted, so the recorded text holds the target's own token at every
position, for any of them. Best tokens of rows on the text were recorded too, and those of refused nodes as far as
the same node was checked then. Drafters that learn from refused nodes may ask for others: with the model at hand it
is asked again; without it the row of the same token that was recorded last before stands in, and the replay is
called near. Hidden states are not recorded: with the model at hand, each text is read once.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.blocks import Blocks
from sapwood.errors import SapwoodError
from sapwood.protocols import Chunk, Scores, Session, Work
from sapwood.records import BackendInfo
from sapwood.trace.rounds import Trace
from sapwood.tree import ROOT, Tree, check_path

Key = tuple[int, tuple[int, ...]]  # last position on the text, and the tokens that leave it there
Row = tuple[IntArray, FloatArray]  # best tokens and their log-probabilities
When = tuple[int, int]  # prompt and position
BORROWED = ("model", "device", "dtype", "runner", "network")  # what trained drafters take from a torch backend


class Known:
    """One recorded text: the tokens, and what the target answered where."""

    def __init__(self, number: int, tokens: Sequence[int], prompt: int) -> None:
        self.number, self.tokens, self.prompt = number, list(tokens), prompt
        self.rows: dict[Key, Row] = {}
        self.read: Scores | None = None  # what the model at hand made of the whole text
        self.states: dict[tuple[int, ...], Any] = {}  # layers -> states of the text on the device, [n, layers * width]

    def place(self, tree: Tree, length: int) -> list[Key]:
        """Where each node of a tree stands whose root is the text's token at position `length`."""
        if self.tokens[length : length + 1] != [int(tree.tokens[ROOT])]:
            raise SapwoodError(f"token {tree.tokens[ROOT]} at position {length} is not the recorded text's")
        keys: list[Key] = [(length, ())]
        for node in range(1, len(tree)):
            anchor, tail = keys[tree.parents[node]]
            token = int(tree.tokens[node])
            straight = not tail and self.tokens[anchor + 1 : anchor + 2] == [token]
            keys.append((anchor + 1, ()) if straight else (anchor, (*tail, token)))
        return keys

    def best(self, key: Key) -> int | None:
        """The target's own next token; None where nobody knows."""
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


class Texts:
    """All texts of a trace as a backend."""

    def __init__(self, trace: Trace, live: Any = None) -> None:
        self.watched: set[int] = set()  # layers that drafters look at
        self.live = live  # the model itself, where it is at hand: its weights are used, and each text is read once
        self.top = trace.rounds[0].law.tokens.shape[1] if trace.rounds else 0
        self.spares: dict[int, list[tuple[When, Row]]] = {}  # token -> recorded rows of it, the oldest first
        self.guessed = 0  # rows for which another stood in
        self.beside = any(one.beside for one in trace.rounds)  # passes ran beside the host
        self.known = [self._learn(trace, asked.prompt) for asked in trace.asked]
        self.memory = Blocks()
        self._info = dataclasses.replace(trace.header.info, name="replay", provides=provided(live))
        self._opened = {tuple(known.tokens[: known.prompt - 1]): known for known in self.known}

    @property
    def info(self) -> BackendInfo:
        """The recorded target; it provides hidden states where the model is at hand."""
        return self._info

    def __getattr__(self, name: str) -> Any:
        """What trained drafters take from the model itself."""
        if name in BORROWED and self.live is not None:
            return getattr(self.live, name)
        if name == "grower" and self.live is not None and self.live.device.type == "cpu":
            return self.live.grower  # on other devices trees would stay there
        raise AttributeError(name)

    def _learn(self, trace: Trace, prompt: int) -> Known:
        asked = trace.asked[prompt]
        known = Known(prompt, [*asked.tokens, *trace.answer(prompt)], len(asked.tokens))
        if (read := asked.reading) is not None:
            first = len(asked.tokens) - 1 - len(read.tokens)
            for row, (tokens, logps) in enumerate(zip(read.tokens, read.logps, strict=True)):
                self._keep(known, (first + row, ()), (tokens, logps), 0)
        for one in trace.of(prompt):
            keys = known.place(one.tree, one.context)
            for key, tokens, logps in zip(keys, one.law.tokens, one.law.logps, strict=True):
                self._keep(known, key, (tokens, logps), one.context)
        return known

    def _keep(self, known: Known, key: Key, row: Row, position: int) -> None:
        known.rows[key] = row
        self.spares.setdefault(known.last(key), []).append(((known.number, position), row))

    def row(self, known: Known, key: Key, count: int) -> Row:
        """The best tokens of a row, or of the row of the same token that stands in for it."""
        if count > self.top:
            raise SapwoodError(
                f"a drafter asks for the {count} best tokens of a law, and the trace holds {self.top}; "
                f"record it again with --top {count}"
            )
        found = known.rows.get(key)
        if found is None:
            self.guessed += 1
            spares, now = self.spares.get(known.last(key), []), (known.number, key[0])
            place = bisect.bisect_right(spares, now, key=lambda spare: spare[0])
            found = spares[place - 1][1] if place else (np.arange(self.top), np.full(self.top, -np.inf))
        return found[0][:count], found[1][:count]

    # ------------------------------------------------------------------------------- the waist
    def open(self, tokens: Sequence[int]) -> "TextSession":
        """A session on a recorded prompt, of which all but the last token are given."""
        known = self._opened.get(tuple(tokens))
        if known is None:
            raise SapwoodError(f"a prompt of {len(tokens) + 1} tokens is not in the trace; record it first")
        if self.live is not None:
            self._read(known)
        return TextSession(self, known, len(tokens))

    def start(self, tokens: Sequence[int], tenant: str = "") -> "TextSession":
        """The same: nothing has to be read."""
        return self.open(tokens)

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """Look the rows of all trees up; commits nothing."""
        if chunks:
            raise SapwoodError("a replay reads no prompts piece by piece; open them")
        found: list[Scores] = []
        for job in work:
            assert isinstance(job.session, TextSession)
            found.append(job.session.score(job.tree, job.since))
        return found

    def watch(self, layers: Sequence[int]) -> None:
        """Have the model keep these layers when it reads the texts."""
        if self.live is None:
            raise SapwoodError("a trace holds no hidden states; replay this drafter with the model at hand")
        self.live.watch(layers)
        if not self.watched.issuperset(layers):
            self.watched.update(layers)
            for known in self.known:  # read before these layers were looked at
                known.read, known.states = None, {}

    def _read(self, known: Known) -> None:
        """Have the model read a text, if drafters look at its states and it was not read yet."""
        if self.watched and known.read is None:
            session = self.live.open(known.tokens)
            known.read = session.reading(len(known.tokens))
            session.close()


class TextSession:
    """How much of a recorded text is committed."""

    def __init__(self, texts: Texts, known: Known, length: int) -> None:
        self.texts, self.known, self._length = texts, known, length
        self._fresh = True  # nothing was committed since it was opened
        self._scored: tuple[Tree, list[Key]] | None = None
        self._asked: Session | None = None  # of the model at hand, where it has to be asked again

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    def ask(self, tree: Tree, keys: list[Key]) -> None:
        """Have the model at hand score a tree of which the trace does not hold all rows."""
        live, length = self.texts.live, keys[ROOT][0]
        if self._asked is None:
            self._asked = live.open(self.known.tokens[:length])
        elif missing := self.known.tokens[self._asked.length : length]:
            live.score([Work(self._asked, line(missing))])
            self._asked.commit(range(len(missing)))
        [scores] = live.score([Work(self._asked, tree)])
        for key, *row in zip(keys, *scores.topk(self.texts.top), strict=True):
            self.known.rows.setdefault(key, tuple(row))

    def reading(self, last: int) -> "TextScores | None":
        """What the target made of the last prompt tokens, as far as it was recorded."""
        keys: list[Key] = [(place, ()) for place in range(max(self._length - last, 0), self._length)]
        if not self.texts.watched:  # without states, rows that were not recorded have nothing to say
            keys = [key for key in keys if key in self.known.rows]
        return TextScores(self, keys) if keys and self._fresh else None

    def score(self, tree: Tree, since: int) -> "TextScores":
        """The rows of a tree from `since` on."""
        keys = self.known.place(tree, self._length)
        self._scored = tree, keys
        return TextScores(self, keys[since:], tree)

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
        self._length, self._fresh, self._scored = length, False, None

    def fork(self) -> "TextSession":
        """Refused: a text that goes on otherwise was never read."""
        raise SapwoodError("this drafter asks the target about texts of its own, which no trace holds; run it")

    def close(self) -> None:
        """Free what the model at hand holds."""
        if self._asked is not None:
            self._asked.close()


class TextScores:
    """What the target answered at some rows."""

    def __init__(self, session: TextSession, keys: list[Key], tree: Tree | None = None) -> None:
        self._session, self._texts, self._known = session, session.texts, session.known
        self._keys, self._tree = keys, tree
        self.beside = session.texts.beside

    def argmax(self) -> IntArray:
        """The target's own next token of each row; -1, which is no token, where nobody knows."""
        found = [self._known.best(key) for key in self._keys]
        return np.array([-1 if token is None else token for token in found], np.int64)

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row."""
        whole = self._tree is not None and len(self._tree) == len(self._keys)
        if self._texts.live is not None and whole and any(key not in self._known.rows for key in self._keys):
            assert self._tree is not None
            self._session.ask(self._tree, self._keys)
        rows = [self._texts.row(self._known, key, count) for key in self._keys]
        return np.stack([tokens for tokens, _ in rows]), np.stack([logps for _, logps in rows])

    def logits(self, row: int) -> FloatArray:
        """Refused: a trace holds the best tokens of a law, not all."""
        raise SapwoodError(f"this part reads whole laws, and a trace holds {self._texts.top} tokens of each; run it")

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of rows on the text, [rows, layers * width]."""
        keys = [self._keys[row] for row in rows]
        if any(tail for _, tail in keys):
            raise SapwoodError("this drafter reads states of refused nodes, which no trace holds; run it")
        return self._known.hidden(layers)[[anchor for anchor, _ in keys]]


def line(tokens: Sequence[int]) -> Tree:
    """A tree that is one path."""
    tree = Tree(tokens[0], capacity=len(tokens))
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 1.0, sampled=True)
    return tree


def provided(live: Any) -> frozenset[str]:
    """What the replay can show to drafters."""
    return frozenset({"hidden"} & live.info.provides) if live is not None else frozenset()
