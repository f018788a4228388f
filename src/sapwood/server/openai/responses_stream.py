"""Responses in the form of the Responses API: one object, or events with sequence numbers."""

import itertools
from typing import Any

import msgspec

from sapwood.server.dispatcher import Dispatcher
from sapwood.server.errors import as_error
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.openai.generation_response import GenerationResponse
from sapwood.server.openai.item_encoder import ItemEncoder
from sapwood.server.openai.output_stream import CallPiece, TextPiece
from sapwood.server.openai.response_builder import ResponseBuilder
from sapwood.server.openai.responses_schema import (
    CachedTokens,
    IncompleteReason,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ReasoningTokens,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
    Status,
)
from sapwood.server.settings import ServerSettings


class ItemResponse(GenerationResponse):
    """The response to a request of the Responses API."""

    def __init__(
        self,
        body: ResponsesRequest,
        builder: ResponseBuilder,
        dispatcher: Dispatcher,
        settings: ServerSettings,
        log_entry: AccessLogEntry,
    ) -> None:
        super().__init__(builder, dispatcher, settings, log_entry)
        self.object = ResponseObjects(body, builder)

    def body_bytes(self) -> bytes:
        """The whole response as JSON."""
        return msgspec.json.encode(self.object.finished())

    def encoder(self, *, padded: bool) -> "ResponseEvents":
        """The encoder of a stream."""
        return ResponseEvents(self.object, padded=padded)


class ResponseObjects:
    """Makes the response object, before and after the output."""

    def __init__(self, body: ResponsesRequest, builder: ResponseBuilder) -> None:
        self.body = body
        self.builder = builder
        self.suffix = builder.id.partition("-")[2]

    def item_id(self, kind: str, index: int) -> str:
        """Id of an item of the output."""
        return f"{kind}_{self.suffix}{index:02x}"

    def started(self) -> ResponseObject:
        """The response before its output."""
        body = self.body
        sampling = self.builder.parsed.requests[0].sampling
        form = body.text.format if body.text and body.text.format else {"type": "text"}
        return ResponseObject(
            id=f"resp_{self.suffix}",
            created_at=self.builder.created,
            model=self.builder.model,
            status="in_progress",
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or {"effort": None, "summary": None},
            temperature=sampling.temperature,
            text={"format": form},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_p=1.0 if body.top_p is None else body.top_p,
            user=body.user,
        )

    def finished(self) -> ResponseObject:
        """The response with its output."""
        made = self.started()
        made.status = self.status
        made.output = self.output()
        if made.status == "incomplete":
            made.incomplete_details = IncompleteReason()
        used = self.builder.usage()
        made.usage = ResponsesUsage(
            used.prompt_tokens,
            used.completion_tokens,
            used.total_tokens,
            CachedTokens(used.prompt_tokens_details.cached_tokens),
            ReasoningTokens(used.completion_tokens_details.reasoning_tokens),
        )
        return made

    @property
    def status(self) -> Status:
        """Status of a finished response, and of its last item."""
        return "incomplete" if self.builder.finish_reason(0, ()) == "length" else "completed"

    def output(self) -> list[OutputItem]:
        """The items of a finished response."""
        output = self.builder.output(0)
        items: list[OutputItem] = []
        if output.reasoning:
            items.append(self.thought(0, output.reasoning))
        if output.text or not output.calls:
            items.append(self.message(len(items), output.text))
        for number, call in enumerate(output.calls):
            made = OutputCall(
                self.item_id("fc", len(items)),
                self.builder.call_id(0, number),
                call.name,
                call.arguments,
                "completed",
            )
            items.append(made)
        items[-1].status = self.status
        return items

    def thought(self, index: int, text: str) -> OutputReasoning:
        """Reasoning of the output."""
        return OutputReasoning(self.item_id("rs", index), [ReasoningText(text)], "completed")

    def message(self, index: int, text: str) -> OutputMessage:
        """A message of the output."""
        part = OutputText(text, logprobs=self.builder.logprobs(0))
        return OutputMessage(self.item_id("msg", index), "completed", [part])


class ResponseEvents(ItemEncoder):
    """Encodes the events of a response."""

    def __init__(self, objects: ResponseObjects, *, padded: bool) -> None:
        super().__init__(objects.builder, padded=padded)
        self.objects = objects
        self._numbers = itertools.count()
        self._done: list[OutputItem] = []
        self._finishing = False

    def event(self, name: str, /, **fields: Any) -> bytes:
        """One event, with the next sequence number."""
        return super().event(name, sequence_number=next(self._numbers), **fields)

    def opening(self) -> list[bytes]:
        """The response before its output."""
        made = self.objects.started()
        names = ("response.created", "response.in_progress")
        return [self.event(name, response=made) for name in names]

    def closing(self) -> list[bytes]:
        """The response with the items that were sent."""
        made = self.objects.finished()
        made.output = self._done
        name = "response.incomplete" if made.status == "incomplete" else "response.completed"
        return [self.event(name, response=made)]

    def empty(self) -> bytes:
        """A comment."""
        return b": wait\n\n"

    def failure(self, problem: Exception) -> bytes:
        """The error as the last event."""
        error = as_error(problem)
        return self.event("error", code=error.code, message=error.message, param=error.param)

    # ------------------------------------------------------------------------------- items
    def place(self, kind: str) -> dict[str, Any]:
        """The fields that name the open item."""
        return {"item_id": self.objects.item_id(kind, self.item), "output_index": self.item}

    def begin_text(self) -> list[bytes]:
        """A message, and its only part."""
        identity = self.objects.item_id("msg", self.item)
        message = OutputMessage(identity, "in_progress", [])
        added = self.event("response.output_item.added", output_index=self.item, item=message)
        part = {**self.place("msg"), "content_index": 0, "part": OutputText("")}
        return [added, self.event("response.content_part.added", **part)]

    def add_text(self, text: str) -> bytes:
        """New text."""
        fields = {**self.place("msg"), "content_index": 0, "delta": text, "logprobs": []}
        return self.event("response.output_text.delta", **fields)

    def end_text(self) -> list[bytes]:
        """The whole text, part and message."""
        message = self.objects.message(self.item, self.written)
        [part] = message.content
        place = {**self.place("msg"), "content_index": 0}
        done = {"text": part.text, "logprobs": part.logprobs}
        return [
            self.event("response.output_text.done", **place, **done),
            self.event("response.content_part.done", **place, part=part),
            self.end_item(message),
        ]

    def begin_reasoning(self) -> list[bytes]:
        """Reasoning without its text."""
        made = OutputReasoning(self.place("rs")["item_id"], [], "in_progress")
        return [self.event("response.output_item.added", output_index=self.item, item=made)]

    def add_reasoning(self, text: str) -> bytes:
        """New reasoning."""
        name = "response.reasoning_text.delta"
        return self.event(name, **self.place("rs"), content_index=0, delta=text)

    def end_reasoning(self) -> list[bytes]:
        """The whole reasoning."""
        name = "response.reasoning_text.done"
        done = self.event(name, **self.place("rs"), content_index=0, text=self.written)
        return [done, self.end_item(self.objects.thought(self.item, self.written))]

    def begin_call(self, call: CallPiece) -> list[bytes]:
        """A call without its arguments."""
        made = OutputCall(self.place("fc")["item_id"], call.id, call.name, "", "in_progress")
        return [self.event("response.output_item.added", output_index=self.item, item=made)]

    def add_arguments(self, text: str) -> bytes:
        """New arguments."""
        name = "response.function_call_arguments.delta"
        return self.event(name, **self.place("fc"), delta=text)

    def end_call(self, call: CallPiece) -> list[bytes]:
        """The whole arguments and call."""
        place = self.place("fc")
        name = "response.function_call_arguments.done"
        done = self.event(name, **place, name=call.name, arguments=self.written)
        made = OutputCall(place["item_id"], call.id, call.name, self.written, "completed")
        return [done, self.end_item(made)]

    def end_item(self, item: OutputItem) -> bytes:
        """The whole item; the last one has the status of the response."""
        if self._finishing:
            item.status = self.objects.status
        self._done.append(item)
        return self.event("response.output_item.done", output_index=self.item, item=item)

    def finish(self) -> list[bytes]:
        """Close the last item; an output without any has an empty message."""
        self._finishing = True
        nothing = self.item < 0
        return [*(self.open_item(TextPiece("")) if nothing else []), *self.close()]
