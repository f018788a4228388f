"""Server-sent events that have names."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sapwood.engine.request import QueueFull
from tests.helpers.asgi_client import Served


def named_events(body: bytes) -> list[dict[str, Any]]:
    """The records of a stream; the name of each event must be its type."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    found = []
    for block in blocks:
        if block.startswith(b":"):
            continue
        name, data = block.split(b"\n")
        record = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + record["type"].encode()
        found.append(record)
    return found


def fail_after_one(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stream of a server fail after its first step."""
    good = one.api.dispatcher.deltas

    async def broken(parsed: Any, finished: Any = ()) -> AsyncGenerator[Any]:
        async for delta in good(parsed):
            yield delta
            raise QueueFull("too many")

    monkeypatch.setattr(one.api.dispatcher, "deltas", broken)
