"""A target on another machine, behind the waist: a laptop drafts for a server.

A round takes one call: `score` waits for the best token of each node, while commits and
rewinds are sent without waiting. They are checked here first, against the text's length and the
last tree, so that a misuse is an error at once. Logits stay at the server until a row is read; the
walk along keyed draws is done there. Hidden states do not cross the network.
"""

import itertools
import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import Capabilities, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.tree import Tree, check_path
from sapwood.core.types import BackendInfo
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.remote.connection import Connection
from sapwood.remote.messages import LinkError, RemoteMessage
from sapwood.remote.waist_messages import score_message

CALL_S = 120.0  # longest wait for a pass or another reply
GREETING_S = 10.0


class TargetLink:
    """A connection to a target server; calls are made one at a time."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(url, "target", GREETING_S)
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.dropped: deque[int] = deque()  # sessions that were never closed, and are gone

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message that has no reply."""
        arrays = {name: fields.pop(name) for name in list(fields) if is_array(fields[name])}
        with self.lock:
            self.connection.send(RemoteMessage(kind, fields, arrays))

    def call(self, message: RemoteMessage, kind: str) -> RemoteMessage:
        """The reply to a message, which must be of this kind."""
        with self.lock:
            while self.dropped:
                self.connection.send(RemoteMessage("close", {"session": self.dropped.popleft()}))
            self.connection.send(message)
            reply = self.connection.receive(time.monotonic() + CALL_S)
        if reply is None:
            self.connection.close()
            raise LinkError(f"the target server at {self.connection.url} does not answer")
        if reply.kind == "refused":
            sentence = reply.text("sentence")
            raise OutOfMemory(sentence) if reply.text("type") == "memory" else ValueError(sentence)
        if reply.kind != kind:
            sentence = reply.fields.get("sentence", f"{reply.kind!r} came instead of {kind!r}")
            raise LinkError(f"the target server at {self.connection.url} failed: {sentence}")
        return reply


def is_array(value: Any) -> bool:
    """True for an array."""
    return isinstance(value, np.ndarray)


@dataclass(eq=False)
class RemoteOutput(TargetOutput):
    """Output of a tree or of a prefill; rows are fetched when they are read."""

    session: "RemoteSession"
    best: IntArray  # [n]
    output: int | None  # number of the output; None for a prefill
    tree: Tree | None = None
    fetched: dict[int, FloatArray] = field(default_factory=dict)

    def ask(self, kind: str, reply: str, **fields: Any) -> RemoteMessage:
        """Ask the server about this output."""
        which = {} if self.output is None else {"output": self.output}
        message = RemoteMessage(kind, {"session": self.session.number, **which, **fields})
        return self.session.link.call(message, reply)

    def argmax(self) -> IntArray:
        """Best next token of each node."""
        return self.best

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens and their log-probabilities."""
        found = self.ask("topk", "best", count=count).arrays
        return found["tokens"], found["logps"]

    def logits(self, row: int) -> FloatArray:
        """Logits after this row's node, fetched once."""
        if row not in self.fetched:
            self.fetched[row] = self.ask("logits", "row", row=row).arrays["logits"]
        return self.fetched[row]

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Refused: hidden states stay at the server."""
        raise SapwoodError("a remote target does not send hidden states")

    def follow(
        self, tree: Tree, temperature: float, key: Callable[[int], int]
    ) -> tuple[tuple[int, ...], int] | None:
        """The walk along keyed draws, at the server; None when the walk can be done here."""
        if temperature == 0 or tree is not self.tree or len(self.best) != len(tree):
            return None
        keys = " ".join(f"{key(depth):x}" for depth in range(tree.height + 1))
        found = self.ask("follow", "walked", temperature=temperature, keys=keys)
        return tuple(found.integers("path")), found.number("bonus")


class RemoteSession:
    """A text at the server: its length and the parents of its last tree are known here."""

    def __init__(self, link: TargetLink, number: int, length: int) -> None:
        self.link = link
        self.number = number
        self.length = length
        self.parents: IntArray | None = None  # of the last scored tree
        self.prefilled = True  # nothing was committed from a tree yet
        # a session that is dropped without `close` is closed at the server before the next call
        self.finalizer = weakref.finalize(self, link.dropped.append, number)
        self.finalizer.atexit = False

    def prefill_output(self, last: int) -> TargetOutput | None:
        """Best tokens after the last tokens of the prompt."""
        self.check_open()
        if not self.prefilled or last < 1:
            return None
        message = RemoteMessage("prefill", {"session": self.number, "last": last})
        found = self.link.call(message, "read")
        known = found.fields.get("known")
        best = found.arrays.get("argmax")
        return (
            RemoteOutput(self, best.astype(np.int64), None) if known and best is not None else None
        )

    def check_open(self) -> None:
        """Refuse to use a closed session."""
        if not self.finalizer.alive:
            raise ValueError("the session is closed")

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of a path of the last scored tree."""
        self.check_open()
        none = np.zeros(0, np.int64)
        check_path(path, none if self.parents is None else self.parents)
        self.link.send("commit", session=self.number, path=np.array(path, np.int32))
        self.length += len(path)
        self.parents = None
        self.prefilled = False

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        self.check_open()
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind to {length}: the session holds {self.length} tokens")
        self.link.send("rewind", session=self.number, length=length)
        self.length = length
        self.parents = None

    def fork(self) -> "RemoteSession":
        """An independent copy at the server."""
        self.check_open()
        number = next(self.link.numbers)
        # waits, as there may be no memory for the copy
        self.link.call(RemoteMessage("fork", {"session": self.number, "other": number}), "done")
        other = RemoteSession(self.link, number, self.length)
        other.prefilled = self.prefilled
        return other

    def close(self) -> None:
        """Free the session at the server."""
        if self.finalizer.detach():
            self.link.send("close", session=self.number)


class RemoteMemory:
    """Memory of keys and values at the server, which its other clients use too."""

    def __init__(self, link: TargetLink) -> None:
        self.link = link

    def ask(self, **fields: int) -> dict[str, Any]:
        """State of the memory."""
        return self.link.call(RemoteMessage("memory", fields), "state").fields

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return int(self.ask()["block"])

    @property
    def blocks(self) -> int | None:
        """Most blocks; None when unlimited."""
        found = self.ask()["blocks"]
        return None if found is None else int(found)

    @property
    def used(self) -> int:
        """Blocks that open sessions of all clients hold."""
        return int(self.ask()["used"])

    @property
    def cached(self) -> int:
        """Blocks of the prefix cache."""
        return int(self.ask()["cached"])

    def fits(self, tokens: int) -> bool:
        """True when there is room for one more session of so many tokens."""
        return bool(self.ask(tokens=tokens)["fits"])

    def limit(self, tokens: int) -> None:
        """Limit the tokens of all sessions, unless the server has a limit of its own."""
        self.ask(limit=tokens)


class RemoteBackend:
    """A model at a target server."""

    def __init__(self, url: str) -> None:
        self.link = TargetLink(url)
        welcome = self.link.connection.welcome
        self.info = BackendInfo(
            name="remote",
            model=welcome.text("model"),
            vocab=welcome.number("vocab", 1),
            context=welcome.number("context", 1),
            max_nodes=welcome.number("max_nodes", 1),
            # costs are those of this link: a profile of another server must not be used
            device=f"remote {url}",
            dtype=welcome.text("dtype"),
            threads=welcome.number("threads"),
        )
        self.capabilities = Capabilities()
        self.memory = RemoteMemory(self.link)

    def open(self, tokens: Sequence[int]) -> RemoteSession:
        """A session with these tokens committed."""
        return self._start(tokens, "", whole=True)

    def start(self, tokens: Sequence[int], tenant: str = "") -> RemoteSession:
        """A session with the cached prefix of these tokens committed."""
        return self._start(tokens, tenant, whole=False)

    def _start(self, tokens: Sequence[int], tenant: str, *, whole: bool) -> RemoteSession:
        number = next(self.link.numbers)
        fields = {"session": number, "tenant": tenant, "whole": whole}
        message = RemoteMessage("start", fields, {"tokens": np.array(tokens, np.int32)})
        found = self.link.call(message, "done")
        return RemoteSession(self.link, number, found.number("length"))

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass at the server."""
        trees = [own(item.session) for item in work]
        readers = [own(chunk.session) for chunk in chunks]
        if len({session.number for session in (*trees, *readers)}) < len(trees) + len(readers):
            raise ValueError("one pass scores one tree, or reads one chunk, per session")
        number = next(self.link.numbers)
        message = score_message(
            number,
            [
                (session.number, item.tree, item.since)
                for session, item in zip(trees, work, strict=True)
            ],
            [
                (session.number, chunk.tokens)
                for session, chunk in zip(readers, chunks, strict=True)
            ],
        )
        reply = self.link.call(message, "scored")
        best = reply.arrays["argmax"].astype(np.int64)
        for session, chunk in zip(readers, chunks, strict=True):
            session.length += len(chunk.tokens)
            session.parents = None
        outputs: list[TargetOutput] = []
        start = 0
        for session, item in zip(trees, work, strict=True):
            stop = start + len(item.tree) - item.since
            session.parents = item.tree.parents.copy()
            outputs.append(RemoteOutput(session, best[start:stop], number, item.tree))
            start = stop
        return outputs

    def watch(self, layers: Sequence[int]) -> None:
        """Refused: hidden states stay at the server."""
        raise SapwoodError("a remote target does not send hidden states")

    def read_tokenizer(self) -> dict[str, Any]:
        """The record of the server's tokenizer."""
        found = self.link.call(RemoteMessage("tokenizer"), "tokenizer").arrays["record"]
        record: dict[str, Any] = json.loads(found.tobytes())
        return record

    def close(self) -> None:
        """Close the connection; the server frees all sessions."""
        self.link.connection.close()


def own(session: Session) -> RemoteSession:
    """The session as one of a remote target, which must be open."""
    assert isinstance(session, RemoteSession)
    session.check_open()
    return session
