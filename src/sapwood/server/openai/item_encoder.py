"""Streams whose output is a list of items: reasoning, texts and tool calls, one after another."""

from abc import ABC, abstractmethod
from typing import Any

from sapwood.server.http.sse import named_event
from sapwood.server.openai.output_stream import CallPiece, OutputStream, Piece, TextPiece
from sapwood.server.openai.response_builder import ChoiceDelta, ResponseBuilder


class ItemEncoder(ABC):
    """Turns the pieces of the only choice into events that open, extend and close items."""

    def __init__(self, builder: ResponseBuilder, *, padded: bool) -> None:
        self.builder = builder
        self.padded = padded
        self.item = -1  # index of the item that was opened last
        self.written = ""  # text or arguments of that item
        self._first: Piece | None = None  # first piece of the open item
        self._output = OutputStream(builder, 0)

    def delta_events(self, delta: ChoiceDelta) -> list[bytes]:
        """The events of one step."""
        self.builder.add(delta)
        events: list[bytes] = []
        for piece in self._output.advance():
            events += self.piece_events(piece)
        return events + (self.finish() if delta.finish else [])

    def finish(self) -> list[bytes]:
        """The events that close the last item."""
        return self.close()

    def piece_events(self, piece: Piece) -> list[bytes]:
        """The events of a new piece, which begins an item or goes on with the open one."""
        begins = type(piece) is not type(self._first)
        if isinstance(piece, CallPiece):
            begins = bool(piece.name)
        events = [*self.close(), *self.open_item(piece)] if begins else []
        added = piece.arguments if isinstance(piece, CallPiece) else piece.text
        self.written += added
        if not added and begins:
            return events
        return [*events, self.add(piece, added)]

    def add(self, piece: Piece, added: str) -> bytes:
        """The event that adds to the open item."""
        if isinstance(piece, CallPiece):
            return self.add_arguments(added)
        return self.add_text(added) if isinstance(piece, TextPiece) else self.add_reasoning(added)

    def open_item(self, piece: Piece) -> list[bytes]:
        """Open a text, reasoning or a call."""
        self.item += 1
        self.written = ""
        self._first = piece
        if isinstance(piece, CallPiece):
            return self.begin_call(piece)
        return self.begin_text() if isinstance(piece, TextPiece) else self.begin_reasoning()

    def close(self) -> list[bytes]:
        """Close the open item."""
        first, self._first = self._first, None
        if first is None:
            return []
        if isinstance(first, CallPiece):
            return self.end_call(first)
        return self.end_text() if isinstance(first, TextPiece) else self.end_reasoning()

    def event(self, name: str, /, **fields: Any) -> bytes:
        """One event; its type is its name."""
        return named_event(name, {"type": name, **fields}, padded=self.padded)

    @abstractmethod
    def begin_text(self) -> list[bytes]:
        """The events that open a text."""

    @abstractmethod
    def add_text(self, text: str) -> bytes:
        """The event that adds to a text."""

    @abstractmethod
    def end_text(self) -> list[bytes]:
        """The events that close a text."""

    @abstractmethod
    def begin_reasoning(self) -> list[bytes]:
        """The events that open reasoning."""

    @abstractmethod
    def add_reasoning(self, text: str) -> bytes:
        """The event that adds to reasoning."""

    @abstractmethod
    def end_reasoning(self) -> list[bytes]:
        """The events that close reasoning."""

    @abstractmethod
    def begin_call(self, call: CallPiece) -> list[bytes]:
        """The events that open a call."""

    @abstractmethod
    def add_arguments(self, text: str) -> bytes:
        """The event that adds to the arguments of a call."""

    @abstractmethod
    def end_call(self, call: CallPiece) -> list[bytes]:
        """The events that close a call."""
