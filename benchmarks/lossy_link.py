"""A proxy between a client and a message server that delays and loses messages."""

import contextlib
import queue
import random
import socket
import threading
import time
from collections.abc import Iterator

from sapwood.remote.messages import MessageReader, RemoteMessage, parse_url


class LossyLink:
    """Forwards messages of one server; greetings always pass."""

    def __init__(self, url: str, delay: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self.target = parse_url(url)
        self.delay, self.loss = delay, loss
        self.noise = random.Random(seed)
        self.dropped = self.passed = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.pairs: list[socket.socket] = []
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        """Connect each client to the server."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
                self.pairs += [client, server]
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pair in ((client, server, 0.0), (server, client, self.delay)):
                    threading.Thread(target=self.forward, args=pair, daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket, delay: float) -> None:
        """Pass messages on, each `delay` seconds after it came; some are lost."""
        reader = MessageReader()
        coming: queue.Queue[tuple[float, bytes] | None] = queue.Queue()
        threading.Thread(target=self.deliver, args=(coming, sink), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                reader.feed(data)
                for message in reader.messages():
                    self.pass_on(message, coming, delay)
        coming.put(None)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def pass_on(
        self,
        message: RemoteMessage,
        coming: "queue.Queue[tuple[float, bytes] | None]",
        delay: float,
    ) -> None:
        """Send a message on its way, or lose it."""
        kept = message.kind in ("hello", "welcome")
        if not kept and self.noise.random() < self.loss:
            self.dropped += 1
            return
        self.passed += 1
        coming.put((time.monotonic() + (0.0 if kept else delay), message.pack()))

    @staticmethod
    def deliver(coming: "queue.Queue[tuple[float, bytes] | None]", sink: socket.socket) -> None:
        """Hand over every message at its time."""
        with contextlib.suppress(OSError):
            while (next_one := coming.get()) is not None:
                due, data = next_one
                time.sleep(max(due - time.monotonic(), 0.0))
                sink.sendall(data)

    def cut(self) -> None:
        """Break every connection."""
        for end in self.pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def running(self) -> Iterator["LossyLink"]:
        """Forward while the block runs."""
        threading.Thread(target=self.accept, daemon=True).start()
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.cut()
            for end in self.pairs:
                end.close()
