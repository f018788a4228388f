"""llama.cpp through its Python package, one token at a time."""

import time
from collections.abc import Iterator
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.peers.words import Answer, Ask, Opened, Order, Refused


def open_peer(order: Order, draft: Any = None) -> Opened:
    """A GGUF file as llama.cpp runs it; `draft` is a drafter of its package."""
    import llama_cpp

    path = gguf_file(order)
    threads = {"n_threads": order.threads, "n_threads_batch": order.threads}
    layers = 0 if order.device == "cpu" else -1
    # with a drafter its package keeps the logits of all tokens, but makes room for them only where told so
    keeps = {"draft_model": draft, "logits_all": True} if draft is not None else {}
    model = llama_cpp.Llama(
        path, n_ctx=order.context, n_gpu_layers=layers, **threads, **keeps, flash_attn=True, verbose=False
    )

    def decode(ask: Ask) -> Answer:
        model.reset()
        return timed(model.generate(ask.prompt, temp=0.0, top_k=1, reset=True), ask)

    file = path.rsplit("/", 1)[-1]
    return Opened(decode, f"{file} as it is", f"llama-cpp-python {llama_cpp.__version__}")


def gguf_file(order: Order) -> str:
    """The file that was named, or that of the benchmark's model."""
    from sapwood.backends.llamacpp.load import find_file

    try:
        return str(find_file(order.argument or order.model))
    except SapwoodError as error:
        raise Refused(f"{error}, or name one after a colon") from error


def timed(running: Iterator[int], ask: Ask) -> Answer:
    """The tokens of a generator and when they came; the first one ends the reading of the prompt."""
    tokens: list[int] = []
    start = first = last = time.perf_counter()
    for token in running:
        tokens.append(int(token))
        last = time.perf_counter()
        if len(tokens) == 1:
            first = last
        if len(tokens) >= ask.most or tokens[-1] in ask.ends:
            break
    return Answer(len(tokens), max(len(tokens) - 1, 0), last - first, first - start, tokens)
