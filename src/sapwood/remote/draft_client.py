"""The decoder's end of remote drafting: one call a round, and a deadline for its reply.

Text goes out as an offset and the tokens from there on, so a message that is lost costs one tree
and nothing else: the server says how much text it has, and the next call starts from there. The
deadline follows the replies: the usual round trip and a few deviations, at most the limit that the
user has set. A connection that breaks is tried again after a pause, which doubles.
"""

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.core.tree import CAPACITY, Tree
from sapwood.remote.connection import Connection
from sapwood.remote.messages import LinkError, RemoteMessage

GREETING_S = 2.0  # seconds for connecting when an engine is made
RETRY_S = (1.0, 60.0)  # first and longest pause before another attempt to connect
EARLY = 8  # calls before the deadline follows them
DEVIATIONS = 4.0  # mean deviations of a round trip above its mean at which a reply is late
SLACK = 1.25  # least deadline, as a multiple of the usual round trip
SLOWER = 1.1  # growth of the deadline after a late reply, so that a slower link is learned
MEAN = 1 / 8  # rate of the running mean of round trips
SPREAD = 1 / 4  # rate of the running mean deviation


class DraftClient:
    """A connection to a draft server, shared by all requests of an engine."""

    def __init__(self, url: str, limit: float, **hello: Any) -> None:
        self.url = url
        self.limit = limit  # longest wait for a tree, in seconds
        self.hello = hello
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)  # of requests and of calls
        self.connection: Connection | None = None
        self.sentence = ""  # on the last failure to connect
        self.again = 0.0  # time of the next attempt
        self.pause = RETRY_S[0]
        self.sent: dict[int, float] = {}  # call -> time it was sent
        self.replies: dict[int, RemoteMessage] = {}  # call -> reply that is not taken yet
        self.calls = self.late = 0
        self.mean = self.deviation = 0.0  # of round trips, in seconds
        self.stretch = 1.0  # factor of the deadline after late replies

    def connect(self, seconds: float = GREETING_S) -> bool:
        """Connect unless connected, or an attempt failed a moment ago; True when connected."""
        if self.connection is not None:
            return True
        now = time.monotonic()
        if now < self.again:
            return False
        try:
            self.connection = Connection(self.url, "drafter", seconds, **self.hello)
        except LinkError as error:
            self.sentence = str(error)
            self.again = time.monotonic() + self.pause
            self.pause = min(2 * self.pause, RETRY_S[1])
            return False
        self.sentence = ""
        self.pause = RETRY_S[0]
        self.sent.clear()
        self.replies.clear()
        return True

    def drop(self, error: LinkError) -> None:
        """Give a broken connection up; the next attempt comes after a pause."""
        self.sentence = str(error)
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.again = time.monotonic() + self.pause

    @property
    def deadline(self) -> float:
        """Seconds to wait for a reply."""
        if self.calls - self.late < EARLY:
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
            self.sent[call] = time.monotonic()
            return call

    def wait(self, call: int) -> RemoteMessage | None:
        """The reply to a call; None when it is late, or the connection breaks."""
        with self.lock:
            begun = self.sent.get(call)
            if begun is None or self.connection is None:
                return None
            try:
                found = self.await_reply(call, begun + self.deadline)
            except LinkError as error:
                self.drop(error)
                return None
            if found is None:
                self.missed()
            else:
                self.arrived(time.monotonic() - begun)
            self.sent.pop(call)
            return found

    def await_reply(self, call: int, until: float) -> RemoteMessage | None:
        """Receive until this call's reply is there; None at the time `until`."""
        assert self.connection is not None
        while call not in self.replies:
            message = self.connection.receive(until)
            if message is None:
                return None
            self.take(message)
        return self.replies.pop(call)

    def take(self, message: RemoteMessage) -> None:
        """Keep a reply that is waited for; late ones are dropped."""
        if message.kind == "error":
            raise LinkError(f"the draft server at {self.url} says: {message.text('sentence')}")
        call = message.number("call")
        if call in self.sent:
            self.replies[call] = message

    def missed(self) -> None:
        """Count a late reply."""
        self.calls += 1
        self.late += 1
        self.stretch *= SLOWER

    def arrived(self, seconds: float) -> None:
        """Count a reply that came in time."""
        self.calls += 1
        self.stretch = 1.0
        if not self.mean:
            self.mean, self.deviation = seconds, seconds / 2
        self.deviation += SPREAD * (abs(seconds - self.mean) - self.deviation)
        self.mean += MEAN * (seconds - self.mean)

    def end(self, request: int, call: int | None) -> None:
        """Tell the server that a request is over; the reply to `call` is not waited for."""
        with self.lock:
            if call is not None:
                self.sent.pop(call, None)
                self.replies.pop(call, None)
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
