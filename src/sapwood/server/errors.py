"""Errors of the API: exceptions become OpenAI error objects here and nowhere else."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sapwood.engine.request import QueueFull, RequestTimeout
from sapwood.errors import SapwoodError

SOON = {"Retry-After": "1"}  # seconds
# status -> (type, default code)
KINDS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "unavailable"),
}
# of clients whose base URL has one /v1 too few or too many, and of other servers
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/models",
    "/v1/responses",
    "/api/chat",
    "/api/embed",
    "/api/generate",
    "/api/show",
    "/api/tags",
)
ALIKE = 0.75  # likeness of a path, 1 for the same
INTERNAL = "the server failed on this request; the request id names the line in its log"


class ApiError(Exception):
    """A failure with its HTTP status and the fields of the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind, default_code = KINDS[status]
        self.code = code or default_code
        self.headers = dict(headers or {})

    def record(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            },
        }

    def response(self) -> Response:
        """The HTTP response."""
        return Response(
            msgspec.json.encode(self.record()), self.status, self.headers, "application/json"
        )


class ClientDisconnected(Exception):
    """The client has closed the connection; no response can be sent."""


def too_much(name: str, value: object, most: object, param: str | None = None) -> ApiError:
    """The error of a request that exceeds a limit."""
    return ApiError(
        400,
        f"{name} is {value}, and this server takes at most {most}; ask for less",
        param or name,
        "limit_exceeded",
    )


def unknown_model(name: str, served: str) -> ApiError:
    """The error of a request for another model."""
    return ApiError(
        404, f"model {name!r} is not served here; use {served!r}", "model", "model_not_found"
    )


def as_error(problem: Exception, path: str = "") -> ApiError:
    """The error that the client gets; only messages written for users leave the server."""
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, QueueFull):
        return ApiError(429, str(problem), headers=SOON)
    if isinstance(problem, RequestTimeout):
        return ApiError(408, str(problem), headers={"x-should-retry": "false"})
    if isinstance(problem, MemoryError) or type(problem).__name__ in (
        "OutOfMemory",
        "OutOfMemoryError",
    ):
        return ApiError(
            503, "the memory for texts is full; try again later or ask for less", headers=SOON
        )
    if isinstance(problem, SapwoodError):
        return ApiError(400, str(problem))
    if isinstance(problem, HTTPException):
        return routing_error(problem, path)
    return ApiError(500, INTERNAL)


def routing_error(problem: HTTPException, path: str) -> ApiError:
    """The error of an unknown path, with the one that was probably meant, or method."""
    if problem.status_code == 405:
        allowed = (problem.headers or {}).get("Allow", "")
        return ApiError(405, f"this path accepts {allowed} only", headers=problem.headers)
    known = [one for one in PATHS if one.startswith("/api/") or not path.startswith("/api/")]
    near = difflib.get_close_matches(path[:64], known, 1, ALIKE)
    hint = f"did you mean {near[0]}?" if near else "/openapi.json lists what there is"
    return ApiError(404, f"there is nothing at this path; {hint}")
