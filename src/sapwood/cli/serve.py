"""`sapwood serve`: a server for OpenAI, Anthropic and Ollama clients, with a playground page."""

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o
from sapwood.common.gguf_header import SUFFIX, named_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sapwood.llm import LLM
    from sapwood.server.app import ApiRoutes
    from sapwood.server.engine_thread import EngineThread
    from sapwood.server.model_pool import ModelPool
    from sapwood.server.settings import ServerSettings

Model = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="smollm2 (built in), a Hub id, a folder or a .gguf file; repeat it for several.",
    ),
]
RecipeText = Annotated[
    str | None, typer.Option("--recipe", help="Recipe of requests that name none. [default: auto]")
]
Name = Annotated[
    str | None, typer.Option("--name", help="The model's name in the API. [default: as loaded]")
]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")
]
Port = Annotated[
    int | None,
    typer.Option("--port", help="Port to listen on; 0 takes a free one. [default: 8000]"),
]
Key = Annotated[
    list[str] | None,
    typer.Option("--key", help="API key of clients; as SAPWOOD_KEY, `ps` does not show it."),
]
Keys = Annotated[str | None, typer.Option("--keys", help="A file with one API key per line.")]
Config = Annotated[
    str | None,
    typer.Option("--config", help="A TOML file with these options and a [limits] table."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let other machines connect without a key.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Accept this Host header too; repeat it for several."),
]
Origin = Annotated[
    list[str] | None, typer.Option("--origin", help="Accept browser pages of this origin (CORS).")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-recipe", help="A recipe that requests may name. [default: all that can run]"
    ),
]
Heat = Annotated[
    float | None,
    typer.Option("--temperature", help="Temperature of requests that name none. [default: 1]"),
]
Cadence = Annotated[
    float | None,
    typer.Option("--cadence-ms", help="Milliseconds between events of a stream. [default: none]"),
]
Drain = Annotated[
    float | None,
    typer.Option(
        "--drain-seconds", help="Time for running requests to end at shutdown. [default: 30]"
    ),
]
SloMs = Annotated[
    float | None,
    typer.Option("--slo-ms", help="Milliseconds that a pass may take. [default: no limit]"),
]
Together = Annotated[
    int | None, typer.Option("--together", help="Most requests in one pass. [default: 64]")
]
Memory = Annotated[
    int | None, typer.Option("--memory", help="Size of the KV cache in tokens, for all requests.")
]
Traces = Annotated[
    bool,
    typer.Option("--traces", help="Send spans of requests to an OpenTelemetry collector."),
]
ModelsMemory = Annotated[
    float | None,
    typer.Option(
        "--models-memory", help="GiB for several models; the least used leaves. [default: no limit]"
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas", help="Servers behind one address; see docs/replicas.md. [default: 1]"
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option("--lora", help="NAME=FOLDER: serve the model with this adapter as NAME."),
]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", help="Change a limit: NAME=VALUE, such as body=1000000."),
]

TensorParallel = Annotated[
    int | None,
    typer.Option("--tensor-parallel", help="Processes that share the model. [default: 1]"),
]


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
    models_memory: ModelsMemory = None,
    traces: Traces = False,
    replicas: Replicas = None,
    limit: Limit = None,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    tensor_parallel: TensorParallel = None,
    lora: Lora = None,
) -> None:
    """Serve a model to OpenAI, Anthropic and Ollama clients, with a playground at /.

    Options can also be set in the --config file, or as SAPWOOD_PORT=8000 and so on.
    """
    given = dict(locals())
    given |= {"limits": limits_of(given.pop("limit")), "insecure": insecure or None}
    given["traces"] = traces or None
    run(given, given.pop("config"))


def limits_of(pairs: list[str] | None) -> dict[str, str]:
    """Limits from NAME=VALUE pairs."""
    return {name.strip().replace("-", "_"): value for name, _, value in map(split, pairs or ())}


def split(pair: str) -> tuple[str, str, str]:
    """Name, sign and value of a pair."""
    from sapwood.errors import SapwoodError

    if "=" not in pair:
        raise SapwoodError(f"--limit {pair!r} must be NAME=VALUE, such as body=1000000")
    return pair.partition("=")


def run(given: dict[str, object], config: str | None, replica: int | None = None) -> None:
    """Load the model and serve until a signal; a replica has a number."""
    from sapwood.cli import render
    from sapwood.cli.notice import notice
    from sapwood.common.extras import needed_by
    from sapwood.errors import SapwoodError
    from sapwood.server.settings import gather, string_list

    settings, rest = gather(given, file=config)
    sources = string_list(rest.pop("model", None) or "smollm2")
    if len(sources) > 1 and settings.name:
        raise SapwoodError("--name is of one model; several have the names of their folders")
    adapters = adapters_of(string_list(rest.pop("lora", None) or ()))
    choice, *others = [chosen({**rest, "model": source}) for source in sources]
    extra = "serve-llamacpp" if choice.backend == "llamacpp" else "serve"
    with needed_by("`sapwood serve`", extra):
        from sapwood.server.app import ApiRoutes
        from sapwood.server.openai.request_builder import check_recipes
        from sapwood.server.server import check_port, serve

    check_port(settings)
    check_recipes(name for name in settings.recipes if name != "all")
    if settings.traces:  # before the model is loaded, which takes long
        with needed_by("`sapwood serve --traces`", "otel"):
            import sapwood.server.tracing  # noqa: F401
    name = settings.name or model_name(choice.model)
    if settings.replicas > 1:
        if others or adapters:
            raise SapwoodError("--replicas serves one model; give --model once, and no --lora")
        from sapwood.fleet.front import serve_front
        from sapwood.fleet.supervisor import Supervisor

        fleet = Supervisor(settings.replicas, given, config, settings.drain_seconds)
        serve_front(fleet, settings, name, choice.title)
        return
    check_adapters(adapters, choice)
    with render.progress() as progress:
        llm = choice.open(progress)
    if (said := notice(llm)) is not None:
        render.print_dim(f"sapwood: {said}")
    with llm:
        api = ApiRoutes(worker_of(llm, settings), settings, name, choice.title)
        with traced(api):
            named = [(model_name(one.model), one) for one in others]
            named += [(name, replace(choice, lora=path)) for name, path in adapters.items()]
            serve(api, pool_of(api, choice, named) if named else None, replica)


@contextmanager
def traced(api: "ApiRoutes") -> "Iterator[None]":
    """Send spans of all requests while the server runs, if the settings ask for it."""
    if not api.settings.traces:
        yield
        return
    from sapwood.server.tracing import RequestTracer

    tracer = RequestTracer(api.name)
    api.watchers.append(tracer.watch_response)
    try:
        yield
    finally:
        tracer.close()


def adapters_of(pairs: list[str]) -> dict[str, str]:
    """Folders of adapters by the names of their models."""
    from sapwood.errors import SapwoodError

    found: dict[str, str] = {}
    for pair in pairs:
        name, _, folder = pair.partition("=")
        if not name or not folder:
            raise SapwoodError(f"--lora {pair!r} must be NAME=FOLDER, such as style=adapters/style")
        if name in found:
            raise SapwoodError(f"two adapters are called {name!r}; give each a name of its own")
        found[name] = folder
    return found


def check_adapters(adapters: dict[str, str], choice: o.ModelChoice) -> None:
    """Refuse an adapter that cannot be read, before the model is loaded."""
    from pathlib import Path

    from sapwood.common.extras import needed_by
    from sapwood.errors import SapwoodError

    if adapters and (choice.backend == "llamacpp" or choice.tensor_parallel > 1):
        raise SapwoodError("--lora is for models of the torch backend in one process")
    if not adapters:
        return
    with needed_by("--lora"):
        from sapwood.backends.torch.lora import read_adapter
    for folder in adapters.values():
        read_adapter(Path(folder).expanduser())


def pool_of(
    api: "ApiRoutes", choice: o.ModelChoice, others: "Sequence[tuple[str, o.ModelChoice]]"
) -> "ModelPool":
    """The models of a server: the first, which is loaded, and the others."""
    from sapwood.server.app import ApiRoutes
    from sapwood.server.model_pool import ModelPool, PooledModel
    from sapwood.server.server import log_event, start

    def opener(name: str, other: o.ModelChoice) -> "Callable[[], ApiRoutes]":
        def open_model() -> "ApiRoutes":
            llm = other.open(lambda message: log_event("progress", message=message))
            worker = worker_of(llm, api.settings)
            return start(ApiRoutes(worker, api.settings, name, other.title))

        return open_model

    first = PooledModel(api.name, choice.model, opener(api.name, choice), api)
    more = [PooledModel(name, one.model, opener(name, one)) for name, one in others]
    return ModelPool([first, *more], api.settings.models_memory)


def model_name(model: str) -> str:
    """The name that clients see: the last part of a path or a Hub id, without `.gguf`."""
    last = model.rstrip("/").rpartition("/")[2]
    return last[: -len(SUFFIX)] if named_gguf(last) else last


def worker_of(llm: "LLM", settings: "ServerSettings") -> "EngineThread":
    """The thread that will own the model."""
    from sapwood.server.engine_thread import EngineThread

    slo = settings.slo_ms / 1000 if settings.slo_ms else None
    together = {"max_requests": settings.together} if settings.together else {}
    return EngineThread(
        llm, settings.limits.queue, slo=slo, memory=settings.memory or None, **together
    )


def chosen(rest: dict[str, object]) -> o.ModelChoice:
    """The model and recipe among the settings."""
    from dataclasses import fields

    from sapwood.errors import SapwoodError

    known = {field.name for field in fields(o.ModelChoice)}
    strange = sorted(set(rest) - known)
    if strange:
        raise SapwoodError(f"unknown setting {strange[0]!r}; see `sapwood serve --help`")
    given = dict(rest)
    for name in {"threads", "tensor_parallel"} & set(rest):
        try:
            given[name] = int(str(rest[name]))
        except ValueError as error:
            raise SapwoodError(f"{name}={rest[name]!r} must be a whole number") from error
    return o.ModelChoice(**given)  # type: ignore[arg-type]
