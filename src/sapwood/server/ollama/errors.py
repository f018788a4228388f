"""Errors in the form of the Ollama API."""

from sapwood.server.errors import ApiError
from sapwood.server.ollama.schema import OllamaError

# fields of the translated request -> those of the client
FIELDS = {
    "n_predict": "options.num_predict",
    "response_format": "format",
    "reasoning_effort": "think",
}
OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "repeat_penalty",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def error_object(error: ApiError) -> OllamaError:
    """The error object: one text, which names the field that is wrong."""
    param = error.param
    if param is None or param in error.message:
        return OllamaError(error.message)
    return OllamaError(f"{param}: {error.message}")


def own_names(error: ApiError) -> None:
    """Let the error of a translated request name the fields that the client sent."""
    param = error.param or ""
    if param in OPTIONS:
        error.param = f"options.{param}"
    if param in FIELDS:
        error.param = FIELDS[param]
    error.message = error.message.replace("n_predict", "num_predict")
