"""`sapwood deploy`: manifests for Kubernetes, and the server on Ray Serve."""

from typing import Annotated

import typer

group = typer.Typer(
    help="Deploy a server on Kubernetes or Ray Serve.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Option("--model", help="smollm2, a Hub id, a folder or a .gguf file.")]
RecipeText = Annotated[str, typer.Option("--recipe", help="Recipe of requests that name none.")]
Name = Annotated[str, typer.Option("--name", help="Name of the Kubernetes objects.")]
Image = Annotated[str, typer.Option("--image", help="Built from deploy/Dockerfile.")]
MinPods = Annotated[int, typer.Option("--min-pods", help="Fewest pods.")]
MaxPods = Annotated[int, typer.Option("--max-pods", help="Most pods.")]
Waiting = Annotated[
    int, typer.Option("--waiting", help="Waiting requests per pod before another is added.")
]
Cpu = Annotated[str, typer.Option("--cpu", help="Cores of a pod.")]
Memory = Annotated[str, typer.Option("--memory", help="Memory of a pod.")]
Gpus = Annotated[int, typer.Option("--gpus", help="GPUs of a pod; a replica for each.")]
Cache = Annotated[str, typer.Option("--cache", help="Disk space of a pod's cache.")]
AsRay = Annotated[
    bool, typer.Option("--ray", help="A RayService instead, for the KubeRay operator.")
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", help="Port to listen on.")]
ModelName = Annotated[str, typer.Option("--name", help="The model's name in the API.")]
MinReplicas = Annotated[int, typer.Option("--min-replicas", help="Fewest replicas.")]
MaxReplicas = Annotated[int, typer.Option("--max-replicas", help="Most replicas.")]
Ongoing = Annotated[
    int, typer.Option("--ongoing", help="Requests that a replica should have at a time.")
]
Cpus = Annotated[float, typer.Option("--cpus", help="Cores of a replica.")]
RayGpus = Annotated[float, typer.Option("--gpus", help="GPUs of a replica.")]
UpSeconds = Annotated[
    float, typer.Option("--up-seconds", help="Seconds of high load before a replica is added.")
]
DownSeconds = Annotated[
    float, typer.Option("--down-seconds", help="Seconds of low load before a replica is removed.")
]


@group.callback()
def root(context: typer.Context) -> None:
    """Deploy a server on Kubernetes or Ray Serve."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@group.command("kubernetes")
def kubernetes(
    model: Model = "smollm2",
    recipe: RecipeText = "auto",
    name: Name = "sapwood",
    image: Image = "sapwood:latest",
    min_pods: MinPods = 1,
    max_pods: MaxPods = 4,
    waiting: Waiting = 4,
    cpu: Cpu = "2",
    memory: Memory = "4Gi",
    gpus: Gpus = 0,
    cache: Cache = "10Gi",
    ray: AsRay = False,
) -> None:
    """Print manifests: Deployment, Service, autoscaler and disruption budget, or a RayService."""
    from sapwood.fleet.kubernetes import KubernetesOptions, manifests, ray_manifests
    from sapwood.fleet.yaml_text import documents

    options = KubernetesOptions(
        name=name,
        image=image,
        model=model,
        recipe=recipe,
        least=min_pods,
        most=max_pods,
        waiting=waiting,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        cache=cache,
    )
    made = ray_manifests(options) if ray else manifests(options)
    secret = f"kubectl create secret generic {name}-key --from-literal=key=YOUR_KEY"
    typer.echo(f"# the key that clients send: {secret}\n{documents(made)}", nl=False)


@group.command("ray")
def ray_command(
    model: Model = "smollm2",
    recipe: RecipeText = "auto",
    name: ModelName = "",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    min_replicas: MinReplicas = 1,
    max_replicas: MaxReplicas = 4,
    ongoing: Ongoing = 8,
    cpus: Cpus = 1.0,
    gpus: RayGpus = 0.0,
    up_seconds: UpSeconds = 5.0,
    down_seconds: DownSeconds = 120.0,
) -> None:
    """Serve on Ray Serve: replicas by load, sessions that stay, rolling updates.

    Ray is started on this machine. With RAY_ADDRESS the cluster there is used, and what it serves
    is updated replica by replica. Keys come from SAPWOOD_KEY.
    """
    from sapwood.common.extras import needed_by

    with needed_by("`sapwood deploy ray`", "ray"):
        import ray  # noqa: F401

        from sapwood.fleet.ray_serve import RayOptions, run
    options = RayOptions(
        model=model,
        recipe=recipe,
        name=name,
        host=host,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        ongoing=ongoing,
        cpus=cpus,
        gpus=gpus,
        up_seconds=up_seconds,
        down_seconds=down_seconds,
    )
    run(options, port)
