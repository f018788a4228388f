"""Translates a request of the Messages API into a chat."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sapwood.server.anthropic.messages_schema import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    MessagesRequest,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from sapwood.server.errors import ApiError
from sapwood.server.http.json_body import convert
from sapwood.server.openai.message_content import renamed_params
from sapwood.server.openai.model_formats import reasoning_format
from sapwood.server.openai.request_builder import ParsedRequest, RequestBuilder
from sapwood.server.openai.request_schema import ChatRequest, FunctionCall, Message, ToolCall
from sapwood.tokenizer.chat_template import uses

# fields of the chat -> fields of the message
PARAMS = {
    "stop": "stop_sequences",
    "messages": "messages",
    "response_format": "output_config.format",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# blocks of other models' reasoning, for which templates have no place
DROPPED = ("thinking", "redacted_thinking")


def parse_message(builder: RequestBuilder, body: MessagesRequest, tenant: str) -> ParsedRequest:
    """The request as a chat for the engine."""
    if body.max_tokens is None:
        raise ApiError(400, "max_tokens is required", "max_tokens")
    return parse_count(builder, body, tenant)


def parse_count(builder: RequestBuilder, body: MessagesRequest, tenant: str) -> ParsedRequest:
    """The same without a limit on the output, for counting tokens."""
    chat = chat_of(body)
    template = builder.prompts.tokenizer.template
    kind = None if body.thinking is None else body.thinking.get("type")
    if kind not in (None, "disabled") and reasoning_format(template) is None:
        raise ApiError(
            400, "this model has no thinking apart from the text; leave it out", "thinking"
        )
    if kind == "disabled" and template is not None and uses(template, "enable_thinking"):
        chat.reasoning_effort = "none"
    with renamed_params(PARAMS):
        return builder.chat(chat, tenant)


def chat_of(body: MessagesRequest) -> ChatRequest:
    """The same request as a chat."""
    if body.messages[-1].role == "assistant":
        raise ApiError(
            400,
            "the output is a new turn: a last message of the assistant cannot be continued",
            f"messages[{len(body.messages) - 1}].role",
        )
    choice = body.tool_choice
    parallel = not (choice is not None and choice.disable_parallel_tool_use)
    return ChatRequest(
        model=body.model,
        messages=messages_of(body),
        max_tokens=body.max_tokens,
        stop=body.stop_sequences or None,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        speculation=body.speculation,
        tools=None if body.tools is None else [tool_of(tool) for tool in body.tools],
        tool_choice=choice_of_tool(choice),
        parallel_tool_calls=parallel,
        response_format=body.output_config.format if body.output_config else None,
        metadata=body.metadata,
        service_tier=body.service_tier,
    )


# ------------------------------------------------------------------------------- messages
def messages_of(body: MessagesRequest) -> list[Message]:
    """System text and turns as messages."""
    found = []
    if body.system:
        found.append(Message(role="system", content=system_text(body.system)))
    for index, message in enumerate(body.messages):
        found += turn_of(message, f"messages[{index}].content")
    return found


def system_text(system: str | Sequence[TextBlock]) -> str:
    """The text of the system field."""
    return system if isinstance(system, str) else "\n".join(block.text for block in system)


def turn_of(message: AnthropicMessage, path: str) -> Iterator[Message]:
    """The messages of a turn: results of tools, then its text and calls."""
    if isinstance(message.content, str):
        yield Message(role=message.role, content=message.content)
        return
    texts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(message.content):
        read = read_block(block, f"{path}[{index}]")
        if isinstance(read, TextBlock):
            texts.append(read.text)
        elif isinstance(read, ToolUseBlock):
            arguments = json.dumps(read.input, ensure_ascii=False)
            calls.append(ToolCall(read.id, FunctionCall(read.name, arguments)))
        elif isinstance(read, ToolResultBlock):
            text = result_text(read.content, f"{path}[{index}].content")
            yield Message(role="tool", content=text, tool_call_id=read.tool_use_id)
    if calls and message.role != "assistant":
        raise ApiError(400, "only the assistant uses tools", path)
    if texts or calls:
        yield Message(role=message.role, content="".join(texts), tool_calls=calls or None)
    elif not message.content:
        raise ApiError(400, "a message needs content", path)


def read_block(
    block: Mapping[str, Any], path: str
) -> TextBlock | ToolUseBlock | ToolResultBlock | None:
    """A block of content; None for one without a place in a chat."""
    kind = block.get("type")
    if kind == "text":
        return convert(block, TextBlock, path)
    if kind == "tool_use":
        return convert(block, ToolUseBlock, path)
    if kind == "tool_result":
        return convert(block, ToolResultBlock, path)
    if kind in DROPPED:
        return None
    raise ApiError(
        400,
        f"a block of type {str(kind)[:40]!r} cannot be read here; send text, tool_use "
        "and tool_result",
        f"{path}.type",
        "unsupported_content",
    )


def result_text(content: str | Sequence[Mapping[str, Any]] | None, path: str) -> str:
    """The text of a tool's result."""
    if content is None or isinstance(content, str):
        return content or ""
    blocks = [read_block(block, f"{path}[{index}]") for index, block in enumerate(content)]
    for index, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise ApiError(400, "the result of a tool must be text", f"{path}[{index}].type")
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


# ------------------------------------------------------------------------------- tools
def tool_of(tool: AnthropicTool) -> dict[str, Any]:
    """A tool in the form of chats."""
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def choice_of_tool(choice: AnthropicToolChoice | None) -> str | dict[str, Any] | None:
    """The choice of a tool in the form of chats."""
    if choice is None:
        return None
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise ApiError(400, "tool_choice of type tool needs a name", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}
