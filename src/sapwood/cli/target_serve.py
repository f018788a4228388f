"""`sapwood target-serve`: runs a model for decoders that draft on other machines."""

from typing import Annotated

import typer

from sapwood.cli import options as o
from sapwood.cli.draft_serve import Host, Insecure, listen

TargetPort = Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")]
Memory = Annotated[
    int | None, typer.Option("--memory", help="Size of the KV cache in tokens, for all requests.")
]


def command(
    model: o.Name = "smollm2",
    host: Host = "127.0.0.1",
    port: TargetPort = 8766,
    insecure: Insecure = False,
    memory: Memory = None,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
) -> None:
    """Run a model for sapwood on other machines: --model tcp://HOST:PORT there.

    Passes of several clients are merged. SAPWOOD_KEY is the key, set to the same value here and on
    the client.
    """
    from sapwood.cli import render
    from sapwood.errors import SapwoodError
    from sapwood.model_loader import load
    from sapwood.remote.target_server import TargetService

    if memory is not None and memory < 1:
        raise SapwoodError(f"--memory {memory} must be at least 1")
    with render.progress() as progress:
        target, tokenizer = load(
            model, backend, device=device, dtype=dtype, threads=threads, progress=progress
        )
        if memory is not None:
            target.memory.limit(memory)
        text = None if backend == "llamacpp" else tokenizer()  # llama.cpp's cannot be sent
    service = TargetService(target, text, limited=memory is not None)
    listen(service, host, port, insecure, f"runs {target.info.model}")
