"""Reads the body of a request: JSON only, within limits of size and time."""

import asyncio

from starlette.requests import Request

from sapwood.server.errors import ApiError, ClientDisconnected
from sapwood.server.limits import Limits

JSON = "application/json"
# what curl -d sends where it is told nothing, as the commands in Ollama's documentation are
CURL = ("", "application/x-www-form-urlencoded")
OLLAMA = "/api/"


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body; refused as soon as it is too large, and never held beyond the limit."""
    check_head(request, limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected(
                        "the client disconnected before its request was complete"
                    )
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limits.body:
                    raise too_large(limits)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise ApiError(
            408,
            f"the body was not complete after {limits.body_seconds:g} s",
            headers={"Connection": "close"},
        ) from error


def check_head(request: Request, limits: Limits) -> None:
    """Refuse a body by its headers: type, encoding and length."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and not (kind in CURL and is_ollama_command(request)):
        raise ApiError(415, "the body must be JSON; send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not supported; send plain JSON")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.body:
        raise too_large(limits)


def is_ollama_command(request: Request) -> bool:
    """True for a request of Ollama's API that no page sent: pages name their origin."""
    own = {"origin", "sec-fetch-site"} & set(request.headers.keys())
    return request.url.path.startswith(OLLAMA) and not own


def too_large(limits: Limits) -> ApiError:
    """The error of a body above the limit."""
    return ApiError(
        413,
        f"the body is larger than {limits.body} bytes; send less",
        headers={"Connection": "close"},
    )
