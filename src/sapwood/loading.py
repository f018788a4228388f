"""From a model's name to what runs it and what reads and writes its text: the one place that knows the backends."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.protocols import Backend
from sapwood.text import Text

ReadText = Callable[[], Text]
BACKENDS = ("torch", "llamacpp")


def load(
    model: str,
    backend: str | None,  # None: torch
    *,
    device: str | None,
    dtype: str | None,
    threads: int | None,
    progress: Callable[[str], None],
) -> tuple[Backend, ReadText]:
    """The model, and a function that reads its text: a draft model needs none."""
    options: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads, "progress": progress}
    if backend not in (None, *BACKENDS):
        raise SapwoodError(f"backend {backend!r} is not known; use {' or '.join(BACKENDS)}")
    return load_llamacpp(model, **options) if backend == "llamacpp" else load_torch(model, **options)


def load_torch(model: str, **options: Any) -> tuple[Backend, ReadText]:
    """A Hugging Face model."""
    from sapwood.backends.torch.find import check

    check(model, options["dtype"], options["threads"])  # before torch, which takes seconds to start
    options["progress"]("starting torch")
    with undisturbed():
        from sapwood.backends.torch.load import load

        target, folder = load(model, **options)
    return target, lambda: Text.load(folder)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Start torch with the garbage collector at rest, and keep from it for good what the modules hold.

    It would look at their million objects several times on the way in and once on the way out, a second in all.
    """
    first, active = "torch" not in sys.modules, gc.isenabled()
    gc.disable()
    try:
        yield
        if first:
            gc.freeze()
    finally:
        if active:
            gc.enable()


def load_llamacpp(model: str, **options: Any) -> tuple[Backend, ReadText]:
    """A GGUF file, with the tokenizer inside it."""
    from sapwood.backends.llamacpp.load import load

    target, words = load(model, **options)
    made: Any = words  # has the methods of a Tokenizer that texts use
    return target, lambda: Text(made, words.template, words.ends, specials=words.specials)
