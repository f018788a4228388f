"""A further rank of a tensor-parallel model: it replays the calls of rank 0 until that one ends.

`python -m sapwood.backends.torch.follower FD OPTIONS`, as rank 0 starts it.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.session import TorchSession
from sapwood.backends.torch.tensor_parallel import load_shard
from sapwood.core.protocols import PrefillChunk, TreeInput
from sapwood.remote.connection import CHUNK
from sapwood.remote.messages import MessageReader, RemoteMessage
from sapwood.remote.waist_messages import read_score


class Follower:
    """The sessions of one rank, by the numbers that rank 0 gave them."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.sessions: dict[int, TorchSession] = {}

    def replay(self, message: RemoteMessage) -> None:
        """Make a call of rank 0; one that is refused there is refused here too."""
        try:
            self.call(message)
        except (ValueError, TypeError, KeyError):  # rank 0 raises the same to its caller
            return

    def call(self, message: RemoteMessage) -> None:
        """Make a call of rank 0."""
        if message.kind == "score":
            self.score(message)
        elif message.kind == "start":
            self.start(message)
        elif message.kind == "limit":
            self.backend.memory.limit(message.number("tokens"))
        elif message.kind == "close":
            self.sessions.pop(message.number("session")).close()
        else:
            self.on_session(message, self.sessions[message.number("session")])

    def on_session(self, message: RemoteMessage, session: TorchSession) -> None:
        """Make a call on a session."""
        if message.kind == "commit":
            session.commit(message.integers("path"))
        elif message.kind == "rewind":
            session.rewind(message.number("length"))
        elif message.kind == "fork":
            self.sessions[message.number("other")] = session.fork()
        elif message.kind == "prefill":
            found = session.prefill_output(message.number("last"))
            if found is not None:
                found.argmax()
        else:
            raise RuntimeError(f"rank 0 sent {message.kind!r}, which no follower knows")

    def start(self, message: RemoteMessage) -> None:
        """Open a session."""
        tokens = message.integers("tokens")
        self.sessions[message.number("session")] = (
            self.backend.open(tokens)
            if message.fields.get("whole")
            else self.backend.start(tokens, message.text("tenant"))
        )

    def score(self, message: RemoteMessage) -> None:
        """Run this rank's share of a pass."""
        trees, chunks = read_score(message)
        self.backend.score(
            [TreeInput(self.sessions[number], tree, since) for number, tree, since in trees],
            [PrefillChunk(self.sessions[number], tokens) for number, tokens in chunks],
        )


def messages(connection: socket.socket) -> Iterator[RemoteMessage]:
    """Every message of rank 0, until it ends."""
    reader = MessageReader()
    while data := connection.recv(CHUNK):
        reader.feed(data)
        yield from reader.messages()


def main(descriptor: int, options: dict[str, Any]) -> None:
    """Load this rank's share and replay what rank 0 does."""
    with socket.socket(fileno=descriptor) as connection:
        follower = Follower(load_shard(**options))
        for message in messages(connection):
            follower.replay(message)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), json.loads(sys.argv[2]))
    except (KeyboardInterrupt, RuntimeError, OSError):  # rank 0 ended, and says why
        os._exit(1)
    os._exit(0)  # the group may be gone: its own end would wait for the others
