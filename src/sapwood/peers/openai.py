"""Any server of OpenAI's protocol: `openai:URL`, with $OPENAI_API_KEY if it needs a key.

Prompts are sent as token ids if the server accepts them, else as text. The output is text.
"""

import os
import time
from typing import Any

from sapwood.peers import http
from sapwood.peers.messages import (
    AnswerMessage,
    LoadedPeer,
    LoadMessage,
    PeerRefused,
    PromptMessage,
)

FORMS = ("tokens", "text")
PROBE = PromptMessage([0], 1, text="Hello")


def open_peer(message: LoadMessage) -> LoadedPeer:
    """The first model that the server lists."""
    url = message.argument.rstrip("/").removesuffix("/v1") + "/v1"
    key = os.environ.get("OPENAI_API_KEY", "")
    listed = http.ask(f"{url}/models", None, key)["data"]
    if not listed:
        raise PeerRefused(f"{url} serves no model")
    name: str = listed[0]["id"]
    form = accepted_form(url, name, key)

    def decode(request: PromptMessage) -> AnswerMessage:
        return streamed(f"{url}/completions", body_of(request, name, form), key)

    return LoadedPeer(
        decode, f"the server's own, {name}; prompts as {form}", str(listed[0].get("owned_by", ""))
    )


def accepted_form(url: str, name: str, key: str) -> str:
    """The form of prompts that the server accepts: "tokens" or "text"."""
    for form in FORMS:
        try:
            streamed(f"{url}/completions", body_of(PROBE, name, form), key)
        except http.Rejected as error:
            last = error
        else:
            return form
    raise last


def body_of(request: PromptMessage, name: str, form: str) -> dict[str, Any]:
    """A greedy completion request."""
    return {
        "model": name,
        "prompt": request.prompt if form == "tokens" else request.text,
        "max_tokens": request.most,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def streamed(url: str, body: dict[str, Any], key: str) -> AnswerMessage:
    """The text of a stream with timings; the first chunk counts as one token."""
    pieces = []
    count = 0
    start = first = last = time.perf_counter()
    for event in http.events(url, body, key):
        if "error" in event:
            raise PeerRefused(f"the server reports: {event['error']}")
        for choice in event.get("choices") or ():
            if choice.get("text"):
                pieces.append(choice["text"])
                last = time.perf_counter()
                first = last if len(pieces) == 1 else first
        if usage := event.get("usage"):
            count = usage["completion_tokens"]
    count = count or len(pieces)
    return AnswerMessage(
        count, max(count - 1, 0), last - first, first - start, text="".join(pieces)
    )
