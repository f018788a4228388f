"""The server on Ray Serve: replicas by load, sessions that stay, health, draining, updates."""

import dataclasses
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.server.app import ApiRoutes

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
HEALTH_S = 5.0
DRAIN_S = 600.0  # as long as a request may take: scaling down cuts no stream
UP_S = 5.0  # of much load before a replica is added
DOWN_S = 120.0  # of little load before one is removed


@dataclass(frozen=True)
class RayOptions:
    """The choices of a deployment; they arrive as JSON from a Serve configuration."""

    model: str = "smollm2"
    recipe: str = "auto"
    name: str = ""  # of the model in the API
    host: str = "127.0.0.1"  # that the proxies listen on; keys come from the environment
    min_replicas: int = 1
    max_replicas: int = 4
    ongoing: int = 8  # requests of a replica that are aimed at
    cpus: float = 1.0  # of each replica
    gpus: float = 0.0
    threads: int = 0  # of the model on a CPU; 0: as many as cpus
    up_seconds: float = UP_S
    down_seconds: float = DOWN_S

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise SapwoodError(
                f"min-replicas={self.min_replicas} and max-replicas={self.max_replicas} "
                "must be 1 or more, in this order"
            )
        if self.ongoing < 1 or self.cpus < 0 or self.gpus < 0 or self.threads < 0:
            raise SapwoodError("ongoing must be 1 or more; cpus, gpus and threads 0 or more")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the server in a replica."""
        given: dict[str, Any] = {"model": self.model, "recipe": self.recipe}
        given |= {"name": self.name or None, "host": self.host}
        given["threads"] = self.threads or max(round(self.cpus), 1)
        return given


class RayApp:
    """The ASGI application of a replica: made in its process, when the replica starts."""

    def __init__(self, options: RayOptions) -> None:
        self.options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        await loaded(self.options)[1](scope, receive, send)


_LOADED: "dict[RayOptions, tuple[ApiRoutes, ASGIApp]]" = {}  # of this process
_LOCK = threading.Lock()


def loaded(options: RayOptions) -> "tuple[ApiRoutes, ASGIApp]":
    """Routes and application of this process; the model is loaded once."""
    from sapwood.llm import LLM
    from sapwood.server.app import ApiRoutes, make
    from sapwood.server.engine_thread import EngineThread
    from sapwood.server.settings import gather

    with _LOCK:
        if options not in _LOADED:
            settings, rest = gather(options.settings)
            llm = LLM(**rest)
            name = settings.name or options.model.rstrip("/").rpartition("/")[2]
            thread = EngineThread(llm, settings.limits.queue, memory=settings.memory or None)
            api = ApiRoutes(thread, settings, name, options.recipe)
            api.engine_thread.start()
            _LOADED[options] = api, make(api)
        return _LOADED[options]


def application(args: dict[str, Any]) -> Any:
    """The Serve application, for `serve run`, RayService and `sapwood deploy ray`."""
    from ray import serve

    known = {field.name for field in dataclasses.fields(RayOptions)}
    if strange := sorted(set(args) - known):
        raise SapwoodError(f"unknown argument {strange[0]!r}; known: {', '.join(sorted(known))}")
    options = RayOptions(**args)

    class SapwoodReplica:
        """A replica: the server in a process of Ray."""

        def __init__(self) -> None:
            self.api, _ = loaded(options)

        def check_health(self) -> None:
            """Raise when the engine has ended."""
            if not self.api.engine_thread.alive:
                raise RuntimeError("the engine's thread has ended")

        def __del__(self) -> None:
            self.api.engine_thread.stop(0)

    deployment = serve.deployment(
        serve.ingress(RayApp(options))(SapwoodReplica), **deployment_options(options)
    )
    return deployment.bind()


def deployment_options(options: RayOptions) -> dict[str, Any]:
    """The options of the deployment."""
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    return {
        "name": "sapwood",
        "max_ongoing_requests": 64 * options.ongoing,  # more than one pass holds wait inside
        "graceful_shutdown_timeout_s": DRAIN_S,
        "health_check_period_s": HEALTH_S,
        "health_check_timeout_s": 6 * HEALTH_S,
        "ray_actor_options": {"num_cpus": options.cpus, "num_gpus": options.gpus},
        "request_router_config": RequestRouterConfig(request_router_class=ROUTER),
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            target_ongoing_requests=options.ongoing,
            upscale_delay_s=options.up_seconds,
            downscale_delay_s=options.down_seconds,
        ),
    }


def run(options: RayOptions, port: int) -> None:
    """Start Ray on this machine and serve until a signal.

    With RAY_ADDRESS, deploy on that cluster and return; what is deployed there is updated replica
    by replica.
    """
    import ray
    from ray import serve

    from sapwood.server.settings import gather

    gather(options.settings)  # refuses an open address without a key before anything starts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = os.environ.get("RAY_ADDRESS")
    begin(cluster)
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # after Ray, which sets its own
        signal.signal(number, lambda *_: ending.set())
    try:
        serve.start(http_options={"host": options.host, "port": port})
        made = application(dataclasses.asdict(options))
        serve.run(made, name="sapwood", route_prefix="/")
        address = f"http://{options.host}:{port}/v1"
        sys.stdout.write(f"{options.model} is served at {address} by Ray Serve\n")
        sys.stdout.flush()
        if not cluster:
            ending.wait()
            serve.shutdown()
    finally:
        ray.shutdown()


def begin(cluster: str | None) -> None:
    """Start Ray on this machine, or join a cluster; a failure is one sentence."""
    import ray

    try:
        ray.init(
            address=cluster, include_dashboard=False, logging_level="ERROR", log_to_driver=False
        )
    except (
        Exception
    ) as error:  # Ray raises plain exceptions where a process of its does not come up
        reason = " ".join(str(error).split()) or type(error).__name__
        where = f"the cluster at {cluster}" if cluster else "this machine"
        raise SapwoodError(f"Ray did not start on {where}: {reason}") from error
