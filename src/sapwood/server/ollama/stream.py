"""Responses in the form of the Ollama API: one object, or a stream of lines of JSON."""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from sapwood.server.errors import as_error
from sapwood.server.http.sse import EVEN
from sapwood.server.ollama.errors import error_object
from sapwood.server.ollama.schema import (
    OllamaCall,
    OllamaChatLine,
    OllamaFunction,
    OllamaReply,
    OllamaTextLine,
)
from sapwood.server.openai.generation_response import GenerationResponse
from sapwood.server.openai.output_parser import ParsedToolCall
from sapwood.server.openai.output_stream import OutputStream, ReasoningPiece, TextPiece
from sapwood.server.openai.response_builder import ChoiceDelta, ResponseBuilder
from sapwood.server.openai.response_schema import TokenLogprob

CHAT = "/api/chat"
LINE_HEADERS = {
    "content-type": "application/x-ndjson",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
NANOSECONDS = 1_000_000_000  # per second


class OllamaTextResponse(GenerationResponse):
    """The response to a prompt."""

    stream_headers = LINE_HEADERS
    chat = False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._began = time.monotonic()

    def body_bytes(self) -> bytes:
        """The whole response as JSON."""
        output = self.builder.output(0)
        logprobs = self.builder.logprobs(0) if self.builder.wants_logprobs else []
        calls = whole_calls(self.builder, output.calls)
        return self.lines(padded=False).last(output.text, output.reasoning, calls, logprobs)

    def encoder(self, *, padded: bool) -> "LineStream":
        """The encoder of a stream."""
        return self.lines(padded=padded)

    def lines(self, *, padded: bool) -> "LineStream":
        """The encoder of lines, which knows when the request began."""
        return LineStream(self.builder, self._began, chat=self.chat, padded=padded)

    def keep_alive(self) -> bytes:
        """A line that adds nothing: an empty one is no JSON, and clients read every line."""
        return self.lines(padded=False).empty()


class OllamaChatResponse(OllamaTextResponse):
    """The response to a chat."""

    chat = True


class LineStream:
    """Encodes the lines of a stream: new text, thinking and whole calls; counts at the end."""

    def __init__(self, builder: ResponseBuilder, began: float, *, chat: bool, padded: bool) -> None:
        self.builder = builder
        self.began = began  # seconds of the monotonic clock
        self.chat = chat
        self.padded = padded
        self._output = OutputStream(builder, 0)
        self._calls = 0  # calls that have been sent or were cut

    def opening(self) -> list[bytes]:
        """Nothing: the first line has the first text."""
        return []

    def delta_events(self, delta: ChoiceDelta) -> list[bytes]:
        """The line of one step, if it adds anything."""
        logprobs = self.builder.add(delta)
        pieces = self._output.advance()
        text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        thinking = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
        calls = self._ended_calls(finished=delta.finish is not None)
        if not (text or thinking or calls or logprobs):
            return []
        return [self._encode(self._line(text, thinking, calls, logprobs))]

    def _ended_calls(self, *, finished: bool) -> list[OllamaCall]:
        """Calls that are complete now; the last one may still go on."""
        found = self._output.calls
        ended = len(found) if finished else max(len(found) - 1, self._calls)
        begin, self._calls = self._calls, ended
        return whole_calls(self.builder, found[begin:ended], begin)

    def closing(self) -> list[bytes]:
        """The last line."""
        return [self.last("", "", [], [])]

    def last(
        self,
        text: str,
        thinking: str,
        calls: Sequence[OllamaCall],
        logprobs: Sequence[TokenLogprob],
    ) -> bytes:
        """The line with the reason of the end, counts and durations."""
        line = self._line(text, thinking, calls, logprobs)
        usage = self.builder.usage()
        prefill = sum(stats.prefill_s for stats in self.builder.stats())
        whole = sum(stats.seconds for stats in self.builder.stats())
        line.done = True
        line.done_reason = "length" if self.builder.finish_reason(0, ()) == "length" else "stop"
        line.total_duration = nanoseconds(time.monotonic() - self.began)
        line.load_duration = 0
        line.prompt_eval_count = usage.prompt_tokens
        line.prompt_eval_duration = nanoseconds(prefill)
        line.eval_count = usage.completion_tokens
        line.eval_duration = nanoseconds(whole - prefill)
        return self._encode(line)

    def empty(self) -> bytes:
        """A line that adds nothing, for a tick without text."""
        return self._encode(self._line("", "", [], []))

    def failure(self, problem: Exception) -> bytes:
        """The error as the last line."""
        return msgspec.json.encode(error_object(as_error(problem))) + b"\n"

    def _line(
        self,
        text: str,
        thinking: str,
        calls: Sequence[OllamaCall],
        logprobs: Sequence[TokenLogprob],
    ) -> OllamaChatLine | OllamaTextLine:
        named: dict[str, Any] = {"model": self.builder.model, "created_at": timestamp(time.time())}
        if logprobs:
            named["logprobs"] = list(logprobs)
        thought = thinking or UNSET
        if not self.chat:
            return OllamaTextLine(**named, response=text, thinking=thought)
        reply = OllamaReply(content=text, thinking=thought, tool_calls=list(calls) or UNSET)
        return OllamaChatLine(**named, message=reply)

    def _encode(self, line: OllamaChatLine | OllamaTextLine) -> bytes:
        """The line as bytes; spaces before its end pad it to an even size if asked for."""
        made = msgspec.json.encode(line)
        padding = b" " * (-(len(made) + 1) % EVEN) if self.padded else b""
        return made + padding + b"\n"


def whole_calls(
    builder: ResponseBuilder, calls: Sequence[ParsedToolCall], first: int = 0
) -> list[OllamaCall]:
    """Calls from number `first` on, with arguments as objects; one that was cut is left out."""
    found = []
    for number, call in enumerate(calls, first):
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            function = OllamaFunction(name=call.name, arguments=arguments, index=number)
            found.append(OllamaCall(function=function, id=builder.call_id(0, number)))
    return found


def nanoseconds(seconds: float) -> int:
    """A duration as this API has it."""
    return int(seconds * NANOSECONDS)


def timestamp(seconds: float) -> str:
    """A time since 1970 as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def quiet_line(path: str) -> bytes:
    """A line that keeps a stream of this path alive."""
    if path == CHAT:
        return b'{"message":{"role":"assistant","content":""},"done":false}\n'
    return b'{"response":"","done":false}\n'
