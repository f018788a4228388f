"""HTTP requests with the standard library."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any, cast

from sapwood.peers.messages import PeerRefused

WAIT_S = 280.0  # a little less than the benchmark waits for an answer
SAID = 200  # characters of an error body that are reported


class Rejected(PeerRefused):
    """The server rejected the request: another form may work."""


@contextmanager
def post(url: str, body: dict[str, Any] | None, key: str = "") -> Iterator[HTTPResponse]:
    """An open response; without a body the request is a GET."""
    heads = {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, heads), timeout=WAIT_S
        ) as answer:
            yield cast(HTTPResponse, answer)
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")[:SAID]
        kind = Rejected if 400 <= error.code < 500 else PeerRefused
        raise kind(f"{url} answered {error.code}: {' '.join(detail.split())}") from error
    except OSError as error:
        raise PeerRefused(f"{url} cannot be reached ({error}); start the server first") from error


def ask(url: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
    """The response as JSON."""
    with post(url, body, key) as answer:
        return json.loads(answer.read())


def events(url: str, body: dict[str, Any], key: str = "") -> Iterator[dict[str, Any]]:
    """The events of a stream, up to its end."""
    with post(url, body, key) as answer:
        for raw in answer:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
