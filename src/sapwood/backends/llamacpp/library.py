"""The C interface of llama.cpp through llama-cpp-python's low-level module; loaded once, no log."""

from functools import cache
from typing import Any

from sapwood.common.extras import needed_by
from sapwood.errors import SapwoodError

INSTALL = "pip install 'sapwood[llamacpp]'"
OLDEST = (0, 3, 36)  # the first whose parameters have the layout this package was written against


@cache
def library() -> Any:
    """The functions of llama.cpp; an error with the install command if they are missing."""
    try:
        with needed_by("the llama.cpp backend"):
            import llama_cpp
    except (OSError, RuntimeError) as error:
        raise SapwoodError(
            f"llama-cpp-python is installed but does not start ({error}); run again: {INSTALL}"
        ) from error
    check_version(llama_cpp.__version__)
    silence_log(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


def check_version(found: str) -> None:
    """Refuse a version with other structures: a wrong layout would corrupt memory."""
    numbers = tuple(int(word) for word in found.split(".")[:3] if word.isdigit())
    if numbers < OLDEST or numbers[:2] != OLDEST[:2]:
        wanted = ".".join(map(str, OLDEST))
        raise SapwoodError(
            f"llama-cpp-python {found} is not supported, {wanted} or a later 0.3 is; run: {INSTALL}"
        )


def silence_log(llama: Any) -> None:
    """Keep its log off the terminal; failures come back as codes."""

    def ignore(level: int, text: bytes, data: Any) -> None:
        """Drop a log line."""

    # the library keeps a bare pointer, so the callback must stay referenced
    llama.sapwood_log = llama.llama_log_callback(ignore)
    llama.llama_log_set(llama.sapwood_log, None)
