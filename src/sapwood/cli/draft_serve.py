"""`sapwood draft-serve`: drafts trees for decoders on other machines."""

from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Callable

    from sapwood.remote.draft_server import DraftService
    from sapwood.remote.message_server import Service

DraftModelName = Annotated[
    str | None,
    typer.Option("--model", help="A draft model with the target's vocabulary. [default: none]"),
]
DrafterName = Annotated[
    str | None,
    typer.Option("--drafter", help="A drafter that reads text alone. [default: suffix]"),
]
PolicyName = Annotated[
    str, typer.Option("--policy", help="A policy for the trees; clients ask for their size.")
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let other machines connect without a key.")
]


def command(
    model: DraftModelName = None,
    drafter: DrafterName = None,
    policy: PolicyName = "best(stride=8, estimator=raw)",
    host: Host = "127.0.0.1",
    port: Port = 8765,
    insecure: Insecure = False,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
) -> None:
    """Run a drafter for sapwood on other machines: remote(url='tcp://HOST:PORT') there.

    SAPWOOD_KEY is the key, set to the same value here and on the client.
    """
    from sapwood.cli import render

    with render.progress() as progress:
        service = service_of(model, drafter, policy, (backend, device, dtype, threads), progress)
    listen(service, host, port, insecure, f"drafts by {service.recipe.drafter}")


def service_of(
    model: str | None,
    drafter: str | None,
    policy: str,
    options: tuple[str | None, str | None, str | None, int | None],
    progress: "Callable[[str], None]",
) -> "DraftService":
    """The service of a draft model, or of a drafter that looks text up."""
    from sapwood.drafters.compose.draft_model import DraftModel
    from sapwood.errors import SapwoodError
    from sapwood.model_loader import load
    from sapwood.recipe import Recipe, parse
    from sapwood.remote.draft_server import DraftService

    if model is not None and drafter is not None:
        raise SapwoodError("--model makes the drafter draft-model; leave out --drafter or --model")
    made = parse(f"{drafter or 'suffix'} + {policy} + match + fixed")
    if model is None:
        return DraftService(made)
    backend, device, dtype, threads = options
    target, _ = load(model, backend, device=device, dtype=dtype, threads=threads, progress=progress)
    recipe = Recipe(DraftModel(model=target), made.policy, made.verifier, made.controller)
    return DraftService(recipe, vocab=target.info.vocab)


def listen(service: "Service", host: str, port: int, insecure: bool, purpose: str) -> None:
    """Serve until a signal."""
    import contextlib
    import os
    import signal
    import sys

    from sapwood.cli import render
    from sapwood.remote.connection import KEY
    from sapwood.remote.message_server import MessageServer, check_exposed

    key = os.environ.get(KEY, "")
    check_exposed(host, key, insecure)
    with MessageServer(host, port, service, key) as server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        render.print_dim(f"sapwood: {purpose}, at {server.url}")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
