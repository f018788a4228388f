"""Limits of a server on requests, keys and connections."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.errors import SapwoodError


@dataclass(frozen=True)
class Limits:
    """Limits on one request, on one key and on all connections together."""

    body: int = 8 << 20  # bytes
    headers: int = 64  # fields
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0  # until a request's headers are complete
    body_seconds: float = 30.0  # until its body is
    idle_seconds: float = 5.0  # between two requests of a connection
    write_seconds: float = 30.0  # that a client may read nothing
    request_seconds: float = 600.0  # waiting and running together
    connections: int = 1024
    queue: int = 256  # requests waiting for the engine
    per_key: int = 16  # requests of one key at a time; without keys only the queue is limited
    messages: int = 4096
    prompts: int = 64  # of one request
    inputs: int = 2048  # texts of one request for embeddings
    n: int = 16
    new_tokens: int = 65536  # n x prompts x max_tokens of one request
    prediction: int = 65536  # tokens
    stop: int = 4  # strings, or token ids
    stop_chars: int = 256
    logit_bias: int = 1024  # tokens
    top_logprobs: int = 20
    tools: int = 128
    schema_bytes: int = 64 << 10  # of a response format, and of all tools together
    schema_depth: int = 32
    schema_nodes: int = 2048

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < math.inf
            ):
                raise SapwoodError(f"limit {field.name}={value!r} must be a number above 0")

    def changed(self, given: Mapping[str, Any]) -> "Limits":
        """The same limits with some replaced; strings are parsed as numbers."""
        types: dict[str, type] = {
            field.name: type(getattr(self, field.name)) for field in dataclasses.fields(self)
        }
        parsed: dict[str, Any] = {}
        for name, value in given.items():
            if name not in types:
                raise SapwoodError(f"unknown limit {name!r}; known: {', '.join(types)}")
            try:
                parsed[name] = types[name](value)
            except (TypeError, ValueError) as error:
                raise SapwoodError(f"limit {name}={value!r} must be a number") from error
        return dataclasses.replace(self, **parsed)
