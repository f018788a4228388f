"""llama.cpp through its Python package, one token at a time."""

import time
from collections.abc import Iterator
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.peers.messages import (
    AnswerMessage,
    LoadedPeer,
    LoadMessage,
    PeerRefused,
    PromptMessage,
)


def open_peer(message: LoadMessage, draft: Any = None) -> LoadedPeer:
    """A GGUF file in llama.cpp; `draft` is a drafter of its package."""
    import llama_cpp

    path = gguf_file(message)
    threads: dict[str, Any] = {"n_threads": message.threads, "n_threads_batch": message.threads}
    layers = 0 if message.device == "cpu" else -1
    # with a drafter the package needs the logits of all tokens, and allocates them only with
    # `logits_all`
    keeps: dict[str, Any] = {}
    if draft is not None:
        keeps = {"draft_model": draft, "logits_all": True}
    model: Any = llama_cpp.Llama(
        path,
        n_ctx=message.context,
        n_gpu_layers=layers,
        **threads,
        **keeps,
        flash_attn=True,
        verbose=False,
    )

    def decode(request: PromptMessage) -> AnswerMessage:
        model.reset()
        return timed(model.generate(request.prompt, temp=0.0, top_k=1, reset=True), request)

    file = path.rsplit("/", 1)[-1]
    return LoadedPeer(decode, f"{file} as it is", f"llama-cpp-python {llama_cpp.__version__}")


def gguf_file(message: LoadMessage) -> str:
    """The named file, or that of the benchmark's model."""
    from sapwood.backends.llamacpp.load import find_file

    try:
        return str(find_file(message.argument or message.model))
    except SapwoodError as error:
        raise PeerRefused(f"{error}, or name one after a colon") from error


def timed(running: Iterator[int], request: PromptMessage) -> AnswerMessage:
    """The tokens of a generator with timings; prefill ends with the first one."""
    tokens: list[int] = []
    start = first = last = time.perf_counter()
    for token in running:
        tokens.append(int(token))
        last = time.perf_counter()
        if len(tokens) == 1:
            first = last
        if len(tokens) >= request.most or tokens[-1] in request.ends:
            break
    return AnswerMessage(len(tokens), max(len(tokens) - 1, 0), last - first, first - start, tokens)
