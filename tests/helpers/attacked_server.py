"""A refusal of the server as one sentence, and the key that opens it."""

import time
from typing import Any

from tests.helpers.asgi_client import Served

KEY = "a-key-of-tests"
AUTH = ("authorization", f"Bearer {KEY}")
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def refused(one: Served, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    """The error of a request that must be refused, quickly."""
    began = time.monotonic()
    answer = one.chat(**fields) if path == CHAT else one.complete(**fields)
    assert answer.status == 400, answer.body
    assert time.monotonic() - began < 5
    return answer.error
