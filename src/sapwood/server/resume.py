"""Resuming a response on another server: frames for the front, and the record to go on from.

A replica answers its front in frames. Each has a record and bytes for the client; the front passes
the bytes on and keeps the records. When the replica dies, the front hands the records to another,
which replays them and goes on with the next token.
"""

import dataclasses
import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sapwood.engine.output_processor import StatsCounter
from sapwood.engine.prompt_scores import PromptLogprobs
from sapwood.server.errors import ApiError
from sapwood.server.openai.response_builder import ChoiceDelta, ResponseBuilder

SECRET = "x-sapwood-front"  # header with the secret that a front and its replicas share
TENANT = "x-sapwood-tenant"
REQUEST_ID = "x-sapwood-request-id"
# header of a request that is answered in frames: bytes of the continuation before its body
RESUME = "x-sapwood-resume"
FRAMES = "application/vnd.sapwood.frames"
LEAST_TIMEOUT = 0.001  # seconds, of a request whose time is over
LOST = 503  # status of errors after which a front tries another replica
_HEAD = struct.Struct("!BII")  # kind, bytes of the record, bytes for the client


class FrameKind(enum.IntEnum):
    """Kinds of frames."""

    OPEN = 0  # an Opening, and the first events of a stream
    PART = 1  # deltas, and their events
    RESULT = 2  # a ResultHead, and the body of a response that does not stream; the last frame
    END = 3  # a TokenCounts, and the last events of a stream


class Opening(msgspec.Struct, array_like=True):
    """The part of a response that is drawn once, and the way it is sent."""

    id: str
    created: int
    seeds: list[int]  # by choice
    headers: dict[str, str] | None  # of a stream; None: the response is sent at its end


class TokenCounts(msgspec.Struct, array_like=True):
    """Tokens of a complete response, for the log of the front."""

    prompt: int
    completion: int


class ResultHead(msgspec.Struct, array_like=True):
    """Status, headers and counts of a response that does not stream."""

    status: int
    headers: dict[str, str]
    tokens: TokenCounts


class Continuation(msgspec.Struct, array_like=True):
    """The records of a response so far."""

    opening: bytes = b""  # an Opening; empty: nothing was sent yet
    groups: list[bytes] = []  # deltas that were sent together
    elapsed: float = 0.0  # seconds since the request came


_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(list[ChoiceDelta]).decode
_decode_continuation = msgspec.msgpack.Decoder(Continuation).decode
decode_head = msgspec.msgpack.Decoder(ResultHead).decode
decode_counts = msgspec.msgpack.Decoder(TokenCounts).decode
decode_opening = msgspec.msgpack.Decoder(Opening).decode
encode_continuation = _encode


def frame(kind: FrameKind, record: Any = None, body: bytes = b"") -> bytes:
    """A frame as bytes; None is an empty record."""
    packed = b"" if record is None else _encode(record)
    return b"".join((_HEAD.pack(kind, len(packed), len(body)), packed, body))


class FrameReader:
    """Splits bytes into frames; an incomplete frame waits for the rest."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes, bytes]]:
        """Kind, record and body of every frame that is complete now."""
        self._held += data
        begin = 0
        while len(self._held) - begin >= _HEAD.size:
            kind, record, body = _HEAD.unpack_from(self._held, begin)
            middle = begin + _HEAD.size + record
            if len(self._held) < middle + body:
                break
            yield (
                FrameKind(kind),
                bytes(self._held[begin + _HEAD.size : middle]),
                bytes(self._held[middle : middle + body]),
            )
            begin = middle + body
        del self._held[:begin]


class FrontLink:
    """A request of the front: its response is sent in frames and may be a continuation."""

    def __init__(self, resume_bytes: int) -> None:
        self.resume_bytes = resume_bytes
        self.resumed = False
        self.groups: list[list[ChoiceDelta]] = []  # to be replayed
        self.finished: frozenset[int] = frozenset()  # choices that ended in them
        self._continuation = Continuation()

    def split(self, content: bytes) -> bytes:
        """The client's body, after the continuation before it."""
        if self.resume_bytes:
            try:
                self._continuation = _decode_continuation(content[: self.resume_bytes])
            except msgspec.DecodeError as error:
                raise ApiError(400, "the continuation cannot be read") from error
        return content[self.resume_bytes :]

    def restore(self, builder: ResponseBuilder) -> None:
        """Set a new response back to where the continuation ends."""
        requests = builder.parsed.requests
        for request in requests:
            left = request.timeout - self._continuation.elapsed
            request.timeout = max(left, LEAST_TIMEOUT)
        if not self._continuation.opening:
            return
        opening = decode_opening(self._continuation.opening)
        builder.id = opening.id
        builder.created = opening.created
        for request, seed in zip(requests, opening.seeds, strict=True):
            request.sampling = dataclasses.replace(request.sampling, seed=seed)
        scored = any(request.prompt_reader is not None for request in requests)
        if scored and not builder.parsed.stream:
            return  # the scores of the prompt are still needed, and nothing was sent
        self.resumed = True
        self.groups = [_decode_group(group) for group in self._continuation.groups]
        self._restore_requests(builder)

    def _restore_requests(self, builder: ResponseBuilder) -> None:
        requests = builder.parsed.requests
        deltas = [delta for group in self.groups for delta in group]
        self.finished = frozenset(delta.index for delta in deltas if delta.finish is not None)
        for index, request in enumerate(requests):
            own = [delta for delta in deltas if delta.index == index]
            if own:
                request.output_tokens = [token for delta in own for token in delta.tokens]
                request.resumed = counted(own)
            if own and request.prompt_reader is not None:
                request.prompt_reader = PromptLogprobs(0)  # its scores have been sent
                request.prompt_reader.complete = True

    def opening(self, builder: ResponseBuilder, headers: dict[str, str] | None) -> Opening:
        """The record of a response that begins."""
        seeds = [request.sampling.seed for request in builder.parsed.requests]
        return Opening(builder.id, builder.created, seeds, headers)


def counted(deltas: Sequence[ChoiceDelta]) -> StatsCounter:
    """The statistics of these deltas of a choice."""
    return StatsCounter(
        passes=sum(delta.passes for delta in deltas),
        tokens=sum(len(delta.tokens) for delta in deltas),
        drafted=sum(delta.drafted for delta in deltas),
        accepted=sum(delta.accepted for delta in deltas),
    )
