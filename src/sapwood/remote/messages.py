"""Messages between a decoder and its remote drafter or target: JSON fields and raw arrays.

A message is a frame: magic, the lengths of header and body, a JSON header, and the bytes of its
arrays. Nothing in it is executed when it is read, and every length is checked against a limit
first, so a peer cannot make the reader allocate more than that.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapwood.errors import SapwoodError

MAGIC = b"sap1"
FRAME = struct.Struct(">4sII")  # magic, bytes of the header, bytes of the body
MAX_HEADER = 1 << 20
MAX_BODY = 1 << 28
DTYPES = ("<i4", "<i8", "<f4", "<f8", "|b1", "|u1")
DEFAULT_PORT = 8765
SCHEME = "tcp://"


class LinkError(SapwoodError):
    """A remote peer cannot be reached, left, refused the connection or broke the protocol."""


@dataclass
class RemoteMessage:
    """One message: its kind, small fields and arrays."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The message as a frame."""
        shapes, parts = [], []
        for name, array in self.arrays.items():
            flat = np.ascontiguousarray(array)
            flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
            if flat.dtype.str not in DTYPES:
                raise LinkError(f"an array of {flat.dtype} cannot be sent; use {', '.join(DTYPES)}")
            shapes.append([name, flat.dtype.str, list(array.shape)])
            parts.append(flat.tobytes())
        header = json.dumps([self.kind, self.fields, shapes], separators=(",", ":")).encode()
        body = b"".join(parts)
        if len(header) > MAX_HEADER or len(body) > MAX_BODY:
            raise LinkError(f"a message of {len(header) + len(body)} bytes is too long to be sent")
        return FRAME.pack(MAGIC, len(header), len(body)) + header + body

    def number(self, name: str, least: int = 0, most: int = 1 << 62) -> int:
        """A whole number among the fields, within these limits."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise LinkError(f"message {self.kind!r} has {name}={value!r}, not a number it may have")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A short text among the fields."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise LinkError(f"message {self.kind!r} has {name}={value!r}, which is not a text")
        return value

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers among the arrays; empty when it is missing."""
        found = self.arrays.get(name)
        if found is None:
            return []
        if found.ndim != 1 or found.dtype.kind != "i":
            raise LinkError(f"message {self.kind!r} has {name} that is no list of whole numbers")
        numbers: list[int] = found.tolist()
        return numbers


class MessageReader:
    """Turns received bytes into messages; keeps the bytes of one that is not complete."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self.buffer += data

    def messages(self) -> Iterator[RemoteMessage]:
        """Every complete message, in order."""
        while (message := self.next()) is not None:
            yield message

    def next(self) -> RemoteMessage | None:
        """The next complete message; None until more bytes come."""
        if len(self.buffer) < FRAME.size:
            return None
        magic, header, body = FRAME.unpack_from(self.buffer)
        if magic != MAGIC or header > MAX_HEADER or body > MAX_BODY:
            raise LinkError("the peer does not speak sapwood's protocol; check address and port")
        end = FRAME.size + header + body
        if len(self.buffer) < end:
            return None
        frame = bytes(self.buffer[:end])
        del self.buffer[:end]
        return unpack(frame[FRAME.size : FRAME.size + header], frame[FRAME.size + header :])


def unpack(header: bytes, body: bytes) -> RemoteMessage:
    """The message of a header and a body."""
    try:
        kind, fields, shapes = json.loads(header)
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, dtype, shape in shapes:
            if dtype not in DTYPES or any(not isinstance(n, int) or n < 0 for n in shape):
                raise ValueError
            count = math.prod(shape)
            size = count * np.dtype(dtype).itemsize
            if start + size > len(body):
                raise ValueError
            flat = np.frombuffer(body, dtype, count, start)
            arrays[str(name)] = flat.reshape(shape).copy()
            start += size
        if not isinstance(kind, str) or not isinstance(fields, dict) or start != len(body):
            raise ValueError
    except (ValueError, TypeError, RecursionError) as error:
        raise LinkError("the peer sent a message that cannot be read") from error
    return RemoteMessage(kind, fields, arrays)


def parse_url(url: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Host and port of `tcp://host:port`."""
    rest = url.removeprefix(SCHEME)
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):  # an IPv6 address in brackets has colons of its own
        host, port = rest, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not url.startswith(SCHEME) or not host or "/" in rest:
        raise SapwoodError(f"url {url!r} must be tcp://HOST:PORT, such as tcp://10.0.0.7:8765")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SapwoodError(f"url {url!r} names port {port!r}, which must be from 1 to 65535")
    return host, int(port)
