"""A server of messages: greets clients, checks their key, and runs a thread for each connection."""

import contextlib
import hmac
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Protocol

from sapwood.errors import SapwoodError
from sapwood.remote.connection import CHUNK, VERSION
from sapwood.remote.messages import LinkError, MessageReader, RemoteMessage

LOG = logging.getLogger("sapwood.remote")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GREETING_S = 10.0  # seconds that a client has for its first message


class ConnectedClient(Protocol):
    """One connected client of a service."""

    def handle(self, message: RemoteMessage) -> RemoteMessage | None:
        """The reply to a message; None when it has none."""

    def close(self) -> None:
        """Free what the client held."""


class Service(Protocol):
    """Draft or target service behind a message server."""

    role: str  # the clients' role, "drafter" or "target"

    def handshake(self, hello: RemoteMessage) -> tuple[RemoteMessage, ConnectedClient]:
        """Welcome message and peer of a new client; a SapwoodError turns it away."""


class MessageServer(socketserver.ThreadingTCPServer):
    """Listens on one address and serves each connection in a thread."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, service: Service, key: str = "") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.service = service
        self.key = key
        self.sockets: set[socket.socket] = set()
        try:
            super().__init__((host, port), MessageHandler)
        except OSError as error:
            raise SapwoodError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
            ) from error

    @property
    def url(self) -> str:
        """Address of the server, for clients on this machine."""
        host, port = self.server_address[:2]
        return f"tcp://[{host!s}]:{port}" if ":" in str(host) else f"tcp://{host!s}:{port}"

    def opens(self, key: str) -> bool:
        """True when this key opens the server."""
        return hmac.compare_digest(key.encode(), self.key.encode())

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serve from a thread while the block runs; yields the URL."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self.url
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def server_close(self) -> None:
        """Stop listening, and close every connection."""
        super().server_close()
        for one in list(self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class MessageHandler(socketserver.BaseRequestHandler):
    """One connection: a greeting, then messages and replies in order."""

    server: MessageServer

    def handle(self) -> None:
        """Serve the connection until it ends; a bad message ends it with a sentence."""
        connection: socket.socket = self.request
        self.server.sockets.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.serve(connection)
        except SapwoodError as error:
            LOG.info("connection of %s ended: %s", self.client_address, error)
            with contextlib.suppress(OSError):
                connection.sendall(RemoteMessage("error", {"sentence": str(error)}).pack())
        except OSError as error:
            LOG.info("connection of %s broke: %s", self.client_address, error)
        finally:
            self.server.sockets.discard(connection)

    def serve(self, connection: socket.socket) -> None:
        """Greet the client, then answer its messages."""
        connection.settimeout(GREETING_S)
        reader = MessageReader()
        incoming = messages(connection, reader)
        hello = next(incoming, None)
        if hello is None:
            return
        self.check(hello)
        welcome, peer = self.server.service.handshake(hello)
        try:
            connection.settimeout(None)
            connection.sendall(welcome.pack())
            for message in incoming:
                reply = peer.handle(message)
                if reply is not None:
                    connection.sendall(reply.pack())
        finally:
            peer.close()

    def check(self, hello: RemoteMessage) -> None:
        """Turn away a client of another protocol, role or key."""
        if hello.kind != "hello" or hello.fields.get("version") != VERSION:
            raise LinkError(f"this server speaks version {VERSION} of sapwood's protocol")
        if not self.server.opens(hello.text("key")):
            raise LinkError("the key is wrong; set SAPWOOD_KEY to the server's key")
        role = self.server.service.role
        if hello.text("role") != role:
            raise LinkError(f"this is a {role} server, not a {hello.text('role')} server")


def messages(connection: socket.socket, reader: MessageReader) -> Iterator[RemoteMessage]:
    """Every message of a connection, until it ends."""
    while True:
        yield from reader.messages()
        data = connection.recv(CHUNK)
        if not data:
            return
        reader.feed(data)


def check_exposed(host: str, key: str, insecure: bool) -> None:
    """Refuse to listen beyond this machine without a key."""
    if host not in LOOPBACK and not key and not insecure:
        raise SapwoodError(
            f"--host {host} is open to other machines; set a key with SAPWOOD_KEY, or accept "
            "anyone with --insecure"
        )
