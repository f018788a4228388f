"""The client's end of a connection: connect, send, and receive until a deadline."""

import os
import select
import socket
import time
import weakref
from typing import Any

from sapwood.remote.messages import LinkError, MessageReader, RemoteMessage, parse_url

VERSION = 1  # of the protocol
CHUNK = 1 << 18  # bytes read at a time
KEY = "SAPWOOD_KEY"  # environment variable with the key that opens a server
SEND_S = 5.0  # seconds after which a peer that does not read counts as gone


class Connection:
    """One connection to a draft or target server, past its greeting."""

    def __init__(self, url: str, role: str, seconds: float, **hello: Any) -> None:
        self.url = url
        try:
            self.socket = socket.create_connection(parse_url(url), max(seconds, 1e-3))
        except OSError as error:
            raise LinkError(f"no server answers at {url} ({reason(error)})") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = MessageReader()
        self.close = weakref.finalize(self, self.socket.close)  # also when it is dropped
        try:
            key = os.environ.get(KEY, "")
            greeting = {"version": VERSION, "role": role, "key": key, **hello}
            self.send(RemoteMessage("hello", greeting))
            self.welcome = self.expect("welcome", time.monotonic() + seconds)
        except BaseException:
            self.close()
            raise

    def send(self, message: RemoteMessage) -> None:
        """Send a message; a peer that left or does not read is an error."""
        try:
            self.socket.settimeout(SEND_S)
            self.socket.sendall(message.pack())
        except OSError as error:
            raise LinkError(f"the server at {self.url} is gone ({reason(error)})") from error

    def receive(self, deadline: float) -> RemoteMessage | None:
        """The next message; None at the deadline, a time of `time.monotonic`."""
        while True:
            message = self.reader.next()
            if message is not None:
                return message
            left = deadline - time.monotonic()
            if not select.select([self.socket], [], [], max(left, 0.0))[0]:
                return None
            try:
                data = self.socket.recv(CHUNK)
            except OSError as error:
                raise LinkError(f"the server at {self.url} is gone ({reason(error)})") from error
            if not data:
                raise LinkError(f"the server at {self.url} closed the connection")
            self.reader.feed(data)

    def expect(self, kind: str, deadline: float) -> RemoteMessage:
        """The next message, which must be of this kind; an error of the server is raised here."""
        message = self.receive(deadline)
        if message is None:
            raise LinkError(f"the server at {self.url} does not answer in time")
        if message.kind == "error":
            raise LinkError(f"the server at {self.url} says: {message.text('sentence')}")
        if message.kind != kind:
            raise LinkError(f"the server at {self.url} sent {message.kind!r} instead of {kind!r}")
        return message


def reason(error: OSError) -> str:
    """An operating system's error as a few words."""
    return (error.strerror or str(error) or type(error).__name__).lower()
