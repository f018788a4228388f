"""Output of one choice in pieces of reasoning, text and tool calls, as a stream sends them."""

from dataclasses import dataclass

from sapwood.server.openai.output_parser import ParsedOutput, ParsedToolCall
from sapwood.server.openai.response_builder import ResponseBuilder


@dataclass(frozen=True, slots=True)
class TextPiece:
    """New text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """New reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """New arguments of a tool call; the first piece of a call has its name."""

    number: int
    id: str
    arguments: str
    name: str = ""


Piece = TextPiece | ReasoningPiece | CallPiece


class OutputStream:
    """Pieces of one choice's output, each sent once."""

    def __init__(self, builder: ResponseBuilder, index: int) -> None:
        self.builder = builder
        self.index = index
        self.calls: list[ParsedToolCall] = []  # as far as they have been sent
        self._sent = ""  # text that has been sent, of an output that is parsed
        self._reasoning = 0  # characters of reasoning that have been sent
        self._parts = 0  # parts of the text that have been sent, of any other

    def advance(self) -> list[Piece]:
        """Pieces to send now; the possible start of markup or of a tool call waits."""
        if not self.builder.parses:
            added = self.builder.text(self.index, self._parts)
            self._parts = self.builder.parts(self.index)
            return [TextPiece(added)] if added else []
        output = self.builder.output(self.index)
        pieces: list[Piece] = []
        if thought := output.reasoning[self._reasoning :]:
            self._reasoning += len(thought)
            pieces.append(ReasoningPiece(thought))
        return pieces + self._text_and_calls(output)

    def _text_and_calls(self, output: ParsedOutput) -> list[Piece]:
        # the text beside calls has no whitespace around it
        stripped = output.calls and self.builder.is_finished(self.index)
        added = output.text[len(self._sent.lstrip() if stripped else self._sent) :]
        self._sent += added
        begun = bool(self.calls)
        new_text: list[Piece] = [TextPiece(added)] if added else []
        new_calls = self._calls(output.calls)
        return new_calls + new_text if begun else new_text + new_calls

    def _calls(self, calls: list[ParsedToolCall]) -> list[Piece]:
        pieces: list[Piece] = []
        for number, call in enumerate(calls):
            before = self.calls[number].arguments if number < len(self.calls) else None
            if before != call.arguments:
                name = call.name if before is None else ""
                added = call.arguments[len(before or "") :]
                identity = self.builder.call_id(self.index, number)
                pieces.append(CallPiece(number, identity, added, name))
        self.calls = calls
        return pieces
