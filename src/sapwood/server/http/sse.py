"""Server-sent events of a response: roles, text as it comes, finish reasons, usage, [DONE].

Events may be padded to even sizes and sent at a fixed cadence, so that an observer of the traffic
learns little about the number of tokens per step.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from sapwood.server.errors import as_error
from sapwood.server.openai import response_schema as r
from sapwood.server.openai.output_stream import OutputStream, Piece, ReasoningPiece, TextPiece
from sapwood.server.openai.response_builder import ChoiceDelta, ResponseBuilder

EVEN = 256  # bytes; padded events have a multiple of this size
DONE = b"data: [DONE]\n\n"


class StreamEncoder(Protocol):
    """Encodes the events of one response in the form of an API."""

    def opening(self) -> list[bytes]:
        """The first events of a stream."""

    def delta_events(self, delta: ChoiceDelta) -> list[bytes]:
        """The events of one step."""

    def closing(self) -> list[bytes]:
        """The last events of a stream."""

    def empty(self) -> bytes:
        """An event that adds nothing, for a tick without text."""

    def failure(self, problem: Exception) -> bytes:
        """The last events of a stream that failed."""


class EventStream:
    """Encodes the events of a chat or a text completion."""

    def __init__(self, builder: ResponseBuilder, *, padded: bool) -> None:
        self.builder = builder
        self.parsed = builder.parsed
        self.padded = padded
        self._echoed: set[int] = set()  # choices whose scored prompt has been sent
        self._outputs = [OutputStream(builder, index) for index in builder.indexes]

    def opening(self) -> list[bytes]:
        """The first events of a stream: roles, or echoed prompts."""
        if self.parsed.chat:
            role = r.Delta(role="assistant", content="")
            return [self.event([r.ChunkChoice(index, role)]) for index in self.builder.indexes]
        if self.parsed.requests[0].prompt_reader is not None:
            return []  # the echo comes with its log-probabilities
        echoes = [(index, self.builder.echo(index)) for index in self.builder.indexes]
        return [self.event([r.TextChoice(index, echo)]) for index, echo in echoes if echo]

    def delta_events(self, delta: ChoiceDelta) -> list[bytes]:
        """The events of one step: its text, and the finish reason."""
        logprobs = self.builder.add(delta)
        if not self.parsed.chat:
            return self.text_events(delta, logprobs)
        pieces = self._outputs[delta.index].advance()
        found = r.ChatLogprobs(logprobs) if logprobs else None
        if found is not None and not any(isinstance(piece, TextPiece) for piece in pieces):
            pieces = [TextPiece(""), *pieces]
        events = []
        for piece in pieces:
            is_text = isinstance(piece, TextPiece)
            choice = r.ChunkChoice(delta.index, delta_of_piece(piece), found if is_text else None)
            events.append(self.event([choice]))
            found = None if is_text else found
        return events + (self.finish_events(delta) if delta.finish else [])

    def text_events(self, delta: ChoiceDelta, logprobs: list[r.TokenLogprob]) -> list[bytes]:
        """The events of one step of /v1/completions, if it has anything to send."""
        index = delta.index
        events = []
        if self.parsed.requests[index].prompt_reader is not None and index not in self._echoed:
            self._echoed.add(index)
            prompt = self.builder.prompt_logprobs(index)
            events.append(self.event([r.TextChoice(index, self.builder.echo(index), prompt)]))
        if delta.text or logprobs or delta.finish:
            found = self.builder.text_logprobs(index, logprobs) if logprobs else None
            choice = r.TextChoice(index, delta.text, found, delta.finish)
            events.append(self.event([choice], last=delta))
        return events

    def finish_events(self, delta: ChoiceDelta) -> list[bytes]:
        """The last event of a choice, with the finish reason."""
        reason = self.builder.finish_reason(delta.index, self._outputs[delta.index].calls)
        return [self.event([r.ChunkChoice(delta.index, r.Delta(), None, reason)], last=delta)]

    def closing(self) -> list[bytes]:
        """The last events of a stream: usage, if asked for, and [DONE]."""
        usage = [self.event([], usage=self.builder.usage())] if self.parsed.usage else []
        return [*usage, DONE]

    def empty(self) -> bytes:
        """An event that adds nothing, for a tick without text."""
        choice = r.ChunkChoice(0, r.Delta(content="")) if self.parsed.chat else r.TextChoice(0, "")
        return self.event([choice])

    def failure(self, problem: Exception) -> bytes:
        """The error as the last event, and [DONE]."""
        return b"data: " + msgspec.json.encode(as_error(problem).record()) + b"\n\n" + DONE

    def event(
        self,
        choices: Sequence[r.ChunkChoice | r.TextChoice],
        usage: r.Usage | None = None,
        last: ChoiceDelta | None = None,
    ) -> bytes:
        """One event; the one that ends the last choice carries the statistics of speculation."""
        kind = r.ChatChunk if self.parsed.chat else r.TextCompletion
        name = "chat.completion.chunk" if self.parsed.chat else "text_completion"
        made = kind(**self.builder.head(name), choices=list(choices))  # type: ignore[arg-type]
        if self.parsed.usage:
            made.usage = usage
        if last is not None and last.finish and self.builder.finished:
            made.speculation = self.builder.speculation()
        return self.encode(made)

    def encode(self, made: r.ChatChunk | r.TextCompletion) -> bytes:
        """The event as bytes, padded to an even size if asked for."""
        if not self.padded:
            return b"data: " + msgspec.json.encode(made) + b"\n\n"
        made.obfuscation = ""
        missing = -len(msgspec.json.encode(made)) % EVEN
        made.obfuscation = secrets.token_hex(missing // 2 + 1)[:missing]
        return b"data: " + msgspec.json.encode(made) + b"\n\n"


def named_event(name: str, record: Any, *, padded: bool = False) -> bytes:
    """An event with a name; a comment pads it to an even size."""
    made = b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(record) + b"\n\n"
    if not padded:
        return made
    missing = -(len(made) + len(b": \n\n")) % EVEN
    return made + b": " + secrets.token_hex(missing // 2 + 1)[:missing].encode() + b"\n\n"


def delta_of_piece(piece: Piece) -> r.Delta:
    """The delta of a chunk that adds a piece of text, of reasoning or of a call."""
    if isinstance(piece, TextPiece):
        return r.Delta(content=piece.text)
    if isinstance(piece, ReasoningPiece):
        return r.Delta(reasoning_content=piece.text)
    call = r.ToolCallDelta(piece.number, r.FunctionDelta(piece.arguments))
    if piece.name:
        call.id = piece.id
        call.type = "function"
        call.function.name = piece.name
    return r.Delta(tool_calls=[call])


async def events(
    groups: AsyncGenerator[list[ChoiceDelta]], stream: StreamEncoder
) -> AsyncGenerator[tuple[bytes, list[ChoiceDelta] | None]]:
    """Events of a stream after its opening, with the deltas they were made of; None: the last.

    Those of a group are sent together; a failure is the last event.
    """
    try:
        async with aclosing(groups):
            async for group in groups:
                yield group_event(group, stream), group
        yield b"".join(stream.closing()), None
    except Exception as problem:
        yield stream.failure(problem), None


def group_event(group: list[ChoiceDelta], stream: StreamEncoder) -> bytes:
    """The events of a group of deltas; one that adds nothing for an empty group."""
    if not group:
        return stream.empty()
    return b"".join(event for delta in group for event in stream.delta_events(delta))


async def paced(
    groups: AsyncGenerator[list[ChoiceDelta]], seconds: float
) -> AsyncGenerator[list[ChoiceDelta]]:
    """The same deltas, merged by choice, at a fixed cadence; empty groups where none came."""
    waiting: dict[int, ChoiceDelta] = {}
    following: asyncio.Future[list[ChoiceDelta] | None] | None = asyncio.ensure_future(
        anext(groups, None)
    )
    tick = time.monotonic()
    try:
        while following is not None or waiting:
            tick += seconds
            while following is not None and (rest := tick - time.monotonic()) > 0:
                await asyncio.wait({following}, timeout=rest)
                if following.done():
                    group = following.result()
                    for delta in group or ():
                        waiting[delta.index] = merged(waiting.get(delta.index), delta)
                    following = (
                        None if group is None else asyncio.ensure_future(anext(groups, None))
                    )
            await asyncio.sleep(tick - time.monotonic())
            yield list(waiting.values())
            waiting.clear()
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def merged(first: ChoiceDelta | None, second: ChoiceDelta) -> ChoiceDelta:
    """Two deltas of a choice as one."""
    if first is None:
        return second
    return ChoiceDelta(
        second.index,
        first.text + second.text,
        first.tokens + second.tokens,
        first.texts + second.texts,
        first.logprobs + second.logprobs,
        second.finish,
        second.stats,
        second.stop,
        first.passes + second.passes,
        first.drafted + second.drafted,
        first.accepted + second.accepted,
    )
