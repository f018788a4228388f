"""Errors in the form of the Anthropic API."""

from sapwood.server.anthropic.messages_schema import AnthropicErrorDetail, AnthropicErrorResponse
from sapwood.server.errors import ApiError

# HTTP status -> type
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def error_object(error: ApiError) -> AnthropicErrorResponse:
    """The error object; `param` names the field, which this API leaves to the message."""
    detail = AnthropicErrorDetail(KINDS.get(error.status, "invalid_request_error"), error.message)
    if error.param is not None:
        detail.param = error.param
    return AnthropicErrorResponse(detail)
