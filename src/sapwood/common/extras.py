"""Optional packages: errors that name the extra to install when one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from sapwood.errors import SapwoodError

# import name -> extra, where the code that needs it does not name one itself
EXTRA_OF = {
    "accelerate": "torch",
    "gguf": "torch",
    "huggingface_hub": "torch",
    "jinja2": "torch",
    "llvmlite": "torch",
    "numba": "torch",
    "safetensors": "torch",
    "tokenizers": "torch",
    "torch": "torch",
    "transformers": "torch",
    "llama_cpp": "llamacpp",
    "ray": "ray",
    "h11": "serve",
    "llguidance": "serve",
    "msgspec": "serve",
    "prometheus_client": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "opentelemetry": "otel",
    "sglang": "sglang",
    "vllm": "vllm",
}


class MissingExtra(SapwoodError, ImportError):
    """A package of an extra is not installed; `user` is the feature that needs it."""

    def __init__(self, extra: str, user: str) -> None:
        super().__init__(f"{user} needs the {extra} extra: pip install 'sapwood[{extra}]'")
        self.extra = extra


@contextmanager
def needed_by(user: str, extra: str | None = None) -> Iterator[None]:
    """Turn a failed import of an optional package into a MissingExtra that names its extra.

    `extra` replaces the extra of the table, for features with a smaller or larger one.
    """
    try:
        yield
    except MissingExtra as error:
        raise MissingExtra(extra or error.extra, user) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise MissingExtra(extra or EXTRA_OF[package], user) from error
