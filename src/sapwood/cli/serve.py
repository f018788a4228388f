"""`sapwood serve`: an OpenAI-compatible server with a playground page."""

from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.api import LLM
    from sapwood.serve.settings import Settings
    from sapwood.serve.worker import Worker

Model = Annotated[str | None, typer.Option("--model", help="smollm2 (built in), a Hub id, a folder or a .gguf file.")]
RecipeText = Annotated[str | None, typer.Option("--recipe", help="Of requests that name none. [default: auto]")]
Name = Annotated[str | None, typer.Option("--name", help="The model's name in the API. [default: as loaded]")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option("--port", help="0 takes a free one. [default: 8000]")]
Key = Annotated[
    list[str] | None, typer.Option("--key", help="A key that opens the server; SAPWOOD_KEY hides it from `ps`.")
]
Keys = Annotated[str | None, typer.Option("--keys", help="A file with one key per line.")]
Config = Annotated[str | None, typer.Option("--config", help="A TOML file with these options and a [limits] table.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without a key.")]
AllowHost = Annotated[list[str] | None, typer.Option("--allow-host", help="A further name of this server.")]
Origin = Annotated[list[str] | None, typer.Option("--origin", help="A page's origin that may call, for browsers.")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow-recipe", help="That requests may name. [default: all that load nothing]")
]
Heat = Annotated[float | None, typer.Option("--temperature", help="Of requests that name none. [default: 1]")]
Cadence = Annotated[float | None, typer.Option("--cadence-ms", help="Stream events at this pace. [default: at once]")]
Drain = Annotated[float | None, typer.Option("--drain-seconds", help="For what is under way at the end. [default: 30]")]
SloMs = Annotated[float | None, typer.Option("--slo-ms", help="A pass should take no longer. [default: no limit]")]
Together = Annotated[int | None, typer.Option("--together", help="Requests that may share a pass. [default: 64]")]
Memory = Annotated[int | None, typer.Option("--memory", help="Tokens of all texts under way together.")]
Limit = Annotated[list[str] | None, typer.Option("--limit", help="NAME=VALUE, such as body=1000000; see the docs.")]


def command(
    model: Model = None,
    recipe: RecipeText = None,
    name: Name = None,
    host: Host = None,
    port: Port = None,
    key: Key = None,
    keys: Keys = None,
    config: Config = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    origin: Origin = None,
    allow_recipe: Allow = None,
    temperature: Heat = None,
    cadence_ms: Cadence = None,
    drain_seconds: Drain = None,
    slo_ms: SloMs = None,
    together: Together = None,
    memory: Memory = None,
    limit: Limit = None,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
) -> None:
    """Serve a model to OpenAI clients, with a playground at /. Every option may stand in the file or as SAPWOOD_*."""
    given = dict(locals())
    given |= {"limits": limits_of(given.pop("limit")), "insecure": insecure or None}
    run(given, given.pop("config"))


def limits_of(pairs: list[str] | None) -> dict[str, str]:
    """Limits from NAME=VALUE."""
    return {name.strip().replace("-", "_"): value for name, _, value in map(split, pairs or ())}


def split(pair: str) -> tuple[str, str, str]:
    """A name, the sign and a value."""
    from sapwood.errors import SapwoodError

    if "=" not in pair:
        raise SapwoodError(f"--limit {pair!r} must be NAME=VALUE, such as body=1000000")
    return pair.partition("=")


def run(given: dict[str, object], config: str | None) -> None:
    """Load the model and serve until a signal."""
    from sapwood.cli import show
    from sapwood.errors import SapwoodError

    try:
        from sapwood.serve.server import serve
    except ModuleNotFoundError as error:
        raise SapwoodError(f"serving needs {error.name}; install it with: pip install 'sapwood[serve]'") from error
    from sapwood.serve.app import Front
    from sapwood.serve.settings import gather

    settings, rest = gather(given, file=config)
    choice = chosen(rest)
    with show.progress() as progress:
        llm = choice.open(progress)
    name = settings.name or choice.model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    with llm:
        serve(Front(worker_of(llm, settings), settings, name, choice.title))


def worker_of(llm: "LLM", settings: "Settings") -> "Worker":
    """The thread that will own the model."""
    from sapwood.serve.worker import Worker

    slo = settings.slo_ms / 1000 if settings.slo_ms else None
    together = {"together": settings.together} if settings.together else {}
    return Worker(llm, settings.limits.queue, slo=slo, memory=settings.memory or None, **together)


def chosen(rest: dict[str, object]) -> o.Choice:
    """The model and recipe among what was given."""
    from dataclasses import fields

    from sapwood.errors import SapwoodError

    known = {field.name for field in fields(o.Choice)}
    strange = sorted(set(rest) - known)
    if strange:
        raise SapwoodError(f"unknown setting {strange[0]!r}; see `sapwood serve --help`")
    try:
        threads = {"threads": int(str(rest["threads"]))} if "threads" in rest else {}
    except ValueError as error:
        raise SapwoodError(f"threads={rest['threads']!r} must be a whole number") from error
    return o.Choice(**{**rest, **threads})  # type: ignore[arg-type]
