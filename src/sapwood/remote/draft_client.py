"""The decoder's end of remote drafting: one call a round, and a deadline for its reply.

Text goes out as an offset and the tokens from there on, so a message that is lost costs one tree
and nothing else: the server says how much text it has, and the next call starts from there. The
deadline follows the replies: the usual round trip and a few deviations, at most the limit that the
user has set. A late reply is still read, for its round trip and for the text that came after its
call. A connection that breaks is tried again after a pause, which doubles.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sapwood.core.tree import CAPACITY, Tree
from sapwood.remote.connection import Connection
from sapwood.remote.messages import LinkError, RemoteMessage

GREETING_S = 2.0  # seconds for connecting when an engine is made
RETRY_S = (1.0, 60.0)  # first and longest pause before another attempt to connect
EARLY = 8  # replies before the deadline follows them
DEVIATIONS = 4.0  # mean deviations of a round trip above its mean at which a reply is late
SLACK = 1.25  # least deadline, as a multiple of the usual round trip
SLOWER = 1.1  # growth of the deadline after a late reply, so that a slower link is learned
MEAN = 1 / 8  # rate of the running mean of round trips
SPREAD = 1 / 4  # rate of the running mean deviation
ANSWERED = 1 / 16  # rate of the share of calls that are answered in time
OUTSTANDING = 64  # calls whose replies may still come


class DraftClient:
    """A connection to a draft server, shared by all requests of an engine."""

    def __init__(
        self,
        url: str,
        limit: float,
        now: Callable[[], float] = time.monotonic,  # seconds; the connection's clock
        **hello: Any,
    ) -> None:
        self.url = url
        self.now = now
        self.limit = limit  # longest wait for a tree, in seconds
        self.hello = hello
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)  # of requests and of calls
        self.connection: Connection | None = None
        self.sentence = ""  # on the last failure to connect
        self.again = 0.0  # time of the next attempt
        self.pause = RETRY_S[0]
        self.sent: dict[int, float] = {}  # call without a reply -> time it was sent
        self.wanted: set[int] = set()  # calls whose reply will be taken
        self.replies: dict[int, RemoteMessage] = {}  # call -> reply that is not taken yet
        self.looked = 0.0  # time at which the last reply had not come
        self.calls = self.late = self.arrivals = 0
        self.answered = 1.0  # share of calls with a reply in time, running mean
        self.mean = self.deviation = 0.0  # of round trips, in seconds
        self.stretch = 1.0  # factor of the deadline after late replies

    def connect(self, seconds: float = GREETING_S) -> bool:
        """Connect unless connected, or an attempt failed a moment ago; True when connected."""
        if self.connection is not None:
            return True
        now = self.now()
        if now < self.again:
            return False
        try:
            self.connection = Connection(self.url, "drafter", seconds, **self.hello)
        except LinkError as error:
            self.sentence = str(error)
            self.again = self.now() + self.pause
            self.pause = min(2 * self.pause, RETRY_S[1])
            return False
        self.sentence = ""
        self.pause = RETRY_S[0]
        self.sent.clear()
        self.wanted.clear()
        self.replies.clear()
        return True

    def drop(self, error: LinkError) -> None:
        """Give a broken connection up; the next attempt comes after a pause."""
        self.sentence = str(error)
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.again = self.now() + self.pause

    @property
    def deadline(self) -> float:
        """Seconds to wait for a reply."""
        if self.arrivals < EARLY:
            return self.limit
        usual = max(self.mean + DEVIATIONS * self.deviation, SLACK * self.mean)
        return min(self.stretch * usual, self.limit)

    def ask(self, request: int, text: Sequence[int], start: int, **limits: int) -> int | None:
        """Ask for a tree after this text, of which `start` tokens are known; the call's number."""
        with self.lock:
            if not self.connect(self.limit):
                return None
            assert self.connection is not None
            call = next(self.numbers)
            fields = {"request": request, "call": call, "start": start, **limits}
            fields["micros"] = int(1e6 * self.deadline)
            try:
                tokens = np.array(text[start:], np.int64)
                self.connection.send(RemoteMessage("draft", fields, {"tokens": tokens}))
            except LinkError as error:
                self.drop(error)
                return None
            self.calls += 1
            self.sent[call] = self.now()
            self.wanted.add(call)
            if len(self.sent) > OUTSTANDING:  # the oldest was lost
                self.sent.pop(next(iter(self.sent)))
            return call

    def wait(self, call: int, until: float = 0.0) -> RemoteMessage | None:
        """The reply to a call if it comes until this time; None also when the connection breaks.

        A reply that has come is taken at any time, so without a time this only looks.
        """
        with self.lock:
            if call not in self.wanted or self.connection is None:
                return None
            try:
                found = self.await_reply(call, until)
            except LinkError as error:
                self.drop(error)
                return None
            if found is not None:
                self.wanted.discard(call)
            return found

    def await_reply(self, call: int, until: float) -> RemoteMessage | None:
        """Take what has come; then receive until this call's reply is there, or `until`."""
        assert self.connection is not None
        now = self.now()
        while (message := self.connection.receive(now)) is not None:
            self.take(message, self.looked, now)
        while call not in self.replies and until > now:
            message = self.connection.receive(until)
            now = self.now()
            if message is None:
                break
            self.take(message, now, now)
        self.looked = now
        return self.replies.pop(call, None)

    def take(self, message: RemoteMessage, after: float, before: float) -> None:
        """Time a reply that came between two times, and keep it if it is wanted."""
        if message.kind == "error":
            raise LinkError(f"the draft server at {self.url} says: {message.text('sentence')}")
        call = message.number("call")
        begun = self.sent.pop(call, None)
        if begun is not None:
            self.arrived((max(after, begun) + before) / 2 - begun)
        if call in self.wanted:
            self.replies[call] = message

    def age(self, call: int) -> float:
        """Seconds since a call without a reply; 0 when it is not known."""
        return self.now() - self.sent.get(call, self.now())

    def forget(self, call: int) -> None:
        """Give the reply to a call up; its round trip is still learned if it comes."""
        self.wanted.discard(call)
        self.replies.pop(call, None)

    def missed(self) -> None:
        """Count a late reply."""
        self.late += 1
        self.stretch *= SLOWER
        self.answered -= ANSWERED * self.answered

    def arrived(self, seconds: float) -> None:
        """Count a reply and its round trip."""
        self.arrivals += 1
        self.stretch = 1.0
        self.answered += ANSWERED * (1.0 - self.answered)
        if not self.mean:
            self.mean, self.deviation = seconds, seconds / 2
        self.deviation += SPREAD * (abs(seconds - self.mean) - self.deviation)
        self.mean += MEAN * (seconds - self.mean)

    def end(self, request: int, call: int | None) -> None:
        """Tell the server that a request is over; the reply to `call` is not waited for."""
        with self.lock:
            if call is not None:
                self.forget(call)
            if self.connection is not None:
                try:
                    self.connection.send(RemoteMessage("end", {"request": request}))
                except LinkError as error:
                    self.drop(error)

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            if self.connection is not None:
                self.connection.close()
                self.connection = None


def read_tree(root: int, message: RemoteMessage, vocab: int) -> Tree:
    """The tree of a reply; tokens, parents and probabilities are checked."""
    tokens, parents = message.integers("tokens"), message.integers("parents")
    probs = message.arrays.get("probs")
    count = len(tokens)
    if (
        probs is None
        or probs.dtype.kind != "f"
        or not len(parents) == count == len(probs) < CAPACITY
        or not ((probs >= 0) & (probs <= 1)).all()
        or any(not 0 <= token < vocab for token in tokens)
        or any(not 0 <= parent <= node for node, parent in enumerate(parents))
    ):
        raise LinkError("the draft server sent a tree that is none")
    tree = Tree(root, capacity=count + 1)
    places = [0]
    for token, parent, prob in zip(tokens, parents, probs.tolist(), strict=True):
        places.append(tree.add(places[parent], token, prob))
    return tree
