"""Load a model by name: choose the backend, open weights and tokenizer."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sapwood.common.extras import needed_by
from sapwood.core.protocols import Backend
from sapwood.errors import SapwoodError
from sapwood.remote.messages import SCHEME
from sapwood.tokenizer.tokenizer import Tokenizer

LoadTokenizer = Callable[[], Tokenizer]
BACKENDS = ("torch", "llamacpp")


def load(
    model: str,
    backend: str | None,  # None: torch
    *,
    device: str | None,
    dtype: str | None,
    threads: int | None,
    progress: Callable[[str], None],
    ranks: int = 1,  # processes that share the layers of the model
    lora: str | None = None,  # folder of an adapter
) -> tuple[Backend, LoadTokenizer]:
    """The model, and a function that loads its tokenizer: a draft model needs none."""
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "progress": progress,
    }
    if backend not in (None, *BACKENDS):
        raise SapwoodError(f"backend {backend!r} is not known; use {' or '.join(BACKENDS)}")
    if ranks < 1:
        raise SapwoodError(f"tensor_parallel={ranks} must be at least 1")
    if ranks > 1 and (backend == "llamacpp" or model.startswith(SCHEME)):
        raise SapwoodError("tensor parallelism is for the torch backend; use --backend torch")
    if lora and (backend == "llamacpp" or ranks > 1 or model.startswith(SCHEME)):
        raise SapwoodError("adapters are for models of the torch backend in one process")
    if model.startswith(SCHEME):
        if backend is not None:
            raise SapwoodError(f"model {model} runs elsewhere; leave out backend {backend!r}")
        return load_remote(model)
    if ranks > 1:
        return load_shared(model, ranks, **options)
    if backend == "llamacpp":
        return load_llamacpp(model, **options)
    return load_torch(model, **options, lora=lora)


def load_torch(model: str, **options: Any) -> tuple[Backend, LoadTokenizer]:
    """A Hugging Face model."""
    from sapwood.backends.torch.resolve_model import check

    check(model, options["dtype"], options["threads"])  # before torch, which takes seconds to start
    options["progress"]("starting torch")
    with needed_by("the torch backend"), without_gc():
        first = "torch" not in sys.modules
        from sapwood.backends.torch.load import load_any

        if first:
            freeze()
        target, folder = load_any(model, **options)
        if first:
            freeze()
    return target, lambda: Tokenizer.load(folder)


def load_shared(model: str, ranks: int, **options: Any) -> tuple[Backend, LoadTokenizer]:
    """A Hugging Face model whose layers several processes share."""
    options["progress"]("starting torch")
    with needed_by("the torch backend"), without_gc():
        from sapwood.backends.torch.tensor_parallel import load_parallel

        target, folder = load_parallel(model, ranks, **options)
    return target, lambda: Tokenizer.load(folder)


@contextmanager
def without_gc() -> Iterator[None]:
    """Pause the garbage collector.

    It would visit the million objects of torch's modules several times during their import and,
    unless they are frozen, once at exit: a second in all.
    """
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


def freeze() -> None:
    """Exempt all objects from garbage collection, for good, unless triton's are among them.

    Its bindings would list theirs on standard error when Python ends, since they are never freed.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def load_llamacpp(model: str, **options: Any) -> tuple[Backend, LoadTokenizer]:
    """A GGUF file, with the tokenizer inside it."""
    from sapwood.backends.llamacpp.load import load

    target, gguf = load(model, **options)
    inner: Any = gguf  # has those methods of the tokenizers package that Tokenizer uses
    return target, lambda: Tokenizer(inner, gguf.template, gguf.ends, specials=gguf.specials)


def load_remote(url: str) -> tuple[Backend, LoadTokenizer]:
    """A model at a target server, with the server's tokenizer."""
    from sapwood.backends.remote import RemoteBackend

    target = RemoteBackend(url)

    def tokenizer() -> Tokenizer:
        record = target.read_tokenizer()
        with needed_by("a remote target's tokenizer"):
            from tokenizers import Tokenizer as FastTokenizer
        fast = FastTokenizer.from_str(record["tokenizer"])
        eos = tuple(record["eos"])
        return Tokenizer(fast, record["template"], eos, record["bos"], record["specials"])

    return target, tokenizer
