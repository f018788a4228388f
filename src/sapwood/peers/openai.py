"""Any server that speaks OpenAI's protocol: `openai:URL`, with $OPENAI_API_KEY where it wants a key.

Tokens are sent as they are where the server takes them, else the prompt's words. What comes back is words.
"""

import os
import time
from typing import Any

from sapwood.peers import http
from sapwood.peers.words import Answer, Ask, Opened, Order, Refused

FORMS = ("tokens", "text")
PROBE = Ask([0], 1, text="Hello")


def open_peer(order: Order) -> Opened:
    """The first model the server names."""
    url, key = order.argument.rstrip("/").removesuffix("/v1") + "/v1", os.environ.get("OPENAI_API_KEY", "")
    listed = http.ask(f"{url}/models", None, key)["data"]
    if not listed:
        raise Refused(f"{url} serves no model")
    name: str = listed[0]["id"]
    form = accepted_form(url, name, key)

    def decode(ask: Ask) -> Answer:
        return streamed(f"{url}/completions", body_of(ask, name, form), key)

    return Opened(decode, f"the server's own, {name}; prompts as {form}", str(listed[0].get("owned_by", "")))


def accepted_form(url: str, name: str, key: str) -> str:
    """Whether the server takes tokens, or only text."""
    for form in FORMS:
        try:
            streamed(f"{url}/completions", body_of(PROBE, name, form), key)
        except http.Rejected as error:
            last = error
        else:
            return form
    raise last


def body_of(ask: Ask, name: str, form: str) -> dict[str, Any]:
    """A request for a completion, greedily."""
    return {
        "model": name,
        "prompt": ask.prompt if form == "tokens" else ask.text,
        "max_tokens": ask.most,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def streamed(url: str, body: dict[str, Any], key: str) -> Answer:
    """The words of a stream and when they came; the first piece is taken for one token."""
    pieces, count = [], 0
    start = first = last = time.perf_counter()
    for event in http.events(url, body, key):
        if "error" in event:
            raise Refused(f"the server says: {event['error']}")
        for choice in event.get("choices") or ():
            if choice.get("text"):
                pieces.append(choice["text"])
                last = time.perf_counter()
                first = last if len(pieces) == 1 else first
        if usage := event.get("usage"):
            count = usage["completion_tokens"]
    count = count or len(pieces)
    return Answer(count, max(count - 1, 0), last - first, first - start, text="".join(pieces))
