"""A message, and what the library answers to it."""

from functools import cache
from typing import Any

from sapwood import LLM
from tests.helpers.asgi_client import model

HI = [{"role": "user", "content": "Hi"}]


@cache
def reference() -> LLM:
    """The same model outside of the server."""
    return model(recipe="plain")


def said(answer: Any) -> list[str]:
    return [choice["message"]["content"] for choice in answer.json["choices"]]


def joined(events: list[Any], index: int = 0) -> str:
    found = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in found)
