"""Kubernetes manifests of a server: Deployment, Service, autoscaler and more, or a RayService."""

import re
from dataclasses import dataclass
from typing import Any

from sapwood.errors import SapwoodError

PORT = 8000
USER = 10001  # of the image
CACHE = "/home/sapwood/.cache"
DRAIN_S = 600  # as long as a request may take: scaling down cuts no stream
NOTICE_S = 30  # after draining, before the process is killed
START_S = 1800  # for download and first measurement
STABLE_S = 300  # of low load before a pod is removed
NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
RAY_VERSION = "2.60.0"

Record = dict[str, Any]


@dataclass(frozen=True)
class KubernetesOptions:
    """The choices of a deployment."""

    name: str = "sapwood"
    image: str = "sapwood:latest"
    model: str = "smollm2"
    recipe: str = "auto"
    least: int = 1  # pods
    most: int = 4
    waiting: int = 4  # requests that wait per pod before another is added
    cpu: str = "2"
    memory: str = "4Gi"
    gpus: int = 0  # of each pod; a replica for each
    cache: str = "10Gi"

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise SapwoodError(
                f"name {self.name!r} must be lower-case letters, digits and dashes, at most 52"
            )
        for option in ("cpu", "memory", "cache"):
            if not QUANTITY.fullmatch(getattr(self, option)):
                raise SapwoodError(
                    f"{option}={getattr(self, option)!r} must be a quantity such as 2, 500m or 4Gi"
                )
        if not 1 <= self.least <= self.most:
            raise SapwoodError(
                f"min-pods={self.least} and max-pods={self.most} must be 1 or more, in this order"
            )
        if self.waiting < 1 or self.gpus < 0:
            raise SapwoodError("waiting must be 1 or more, and gpus 0 or more")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all objects."""
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/part-of": "sapwood"}

    @property
    def selector(self) -> dict[str, str]:
        """The labels that select the pods."""
        return {"app.kubernetes.io/name": self.name}

    @property
    def resources(self) -> Record:
        """CPU, memory and GPUs of a pod."""
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        asked = {"cpu": self.cpu, "memory": self.memory, **gpus}
        return {"requests": asked, "limits": {"memory": self.memory, **gpus}}


def manifests(options: KubernetesOptions) -> list[Record]:
    """Deployment, Service, autoscaler and disruption budget."""
    return [deployment(options), service(options), autoscaler(options), budget(options)]


def ray_manifests(options: KubernetesOptions) -> list[Record]:
    """A RayService, for clusters with the KubeRay operator."""
    return [ray_service(options)]


def metadata(options: KubernetesOptions) -> Record:
    """Name and labels of an object."""
    return {"name": options.name, "labels": options.labels}


def deployment(options: KubernetesOptions) -> Record:
    """The pods of the server; a new version starts before an old one drains."""
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": DRAIN_S + NOTICE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(options)],
        "volumes": [
            {"name": "cache", "emptyDir": {"sizeLimit": options.cache}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(PORT),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(options),
        "spec": {
            "selector": {"matchLabels": options.selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {
                "metadata": {"labels": options.labels, "annotations": annotations},
                "spec": pod,
            },
        },
    }


def container(options: KubernetesOptions) -> Record:
    """The server: with several GPUs, one replica for each behind its front."""
    arguments = ["serve", "--model", options.model, "--recipe", options.recipe, "--host", "0.0.0.0"]
    arguments += ["--port", str(PORT), "--drain-seconds", str(DRAIN_S)]
    if options.gpus > 1:
        arguments += ["--replicas", str(options.gpus)]
    secret = {"secretKeyRef": {"name": f"{options.name}-key", "key": "key"}}

    def probe(path: str, period: int, failures: int) -> Record:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    return {
        "name": "sapwood",
        "image": options.image,
        "args": arguments,
        "env": [{"name": "SAPWOOD_KEY", "valueFrom": secret}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": probe("/health", 5, START_S // 5),
        "readinessProbe": probe("/health", 5, 2),
        "livenessProbe": probe("/health/live", 10, 6),
        "resources": options.resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def service(options: KubernetesOptions) -> Record:
    """One address for all pods; a client stays with a pod, whose cache knows its prompts."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(options),
        "spec": {
            "selector": options.selector,
            "sessionAffinity": "ClientIP",
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def autoscaler(options: KubernetesOptions) -> Record:
    """More pods when requests wait; fewer after minutes of little load, one at a time."""
    waiting = {
        "type": "Pods",
        "pods": {
            "metric": {
                "name": "sapwood_requests_now",
                "selector": {"matchLabels": {"state": "waiting"}},
            },
            "target": {"type": "AverageValue", "averageValue": str(options.waiting)},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(options),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": options.name,
            },
            "minReplicas": options.least,
            "maxReplicas": options.most,
            "metrics": [waiting],
            "behavior": {
                "scaleDown": {
                    "stabilizationWindowSeconds": STABLE_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
                }
            },
        },
    }


def budget(options: KubernetesOptions) -> Record:
    """At most one pod is evicted at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(options),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": options.selector}},
    }


def ray_service(options: KubernetesOptions) -> Record:
    """Ray Serve with autoscaling, on a cluster that the KubeRay operator makes."""
    from sapwood.fleet.yaml_text import documents

    arguments = {
        "model": options.model,
        "recipe": options.recipe,
        "min_replicas": options.least,
        "max_replicas": options.most,
        "gpus": options.gpus,
    }
    application = {
        "applications": [
            {
                "name": options.name,
                "route_prefix": "/",
                "import_path": "sapwood.fleet.ray_serve:application",
                "args": arguments,
            }
        ],
        "http_options": {"host": "0.0.0.0", "port": PORT},
    }
    key = {"secretKeyRef": {"name": f"{options.name}-key", "key": "key"}}

    def group(name: str, ports: list[Record]) -> Record:
        made: Record = {
            "name": name,
            "image": options.image,
            "env": [{"name": "SAPWOOD_KEY", "valueFrom": key}],
            "resources": options.resources,
        }
        return {"spec": {"containers": [made | ({"ports": ports} if ports else {})]}}

    ports = [
        {"name": name, "containerPort": port}
        for name, port in (("gcs-server", 6379), ("dashboard", 8265), ("serve", PORT))
    ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": metadata(options),
        "spec": {
            "serveConfigV2": documents([application]),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "enableInTreeAutoscaling": True,
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},
                    "template": group("ray-head", ports),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "replicas",
                        "replicas": options.least,
                        "minReplicas": options.least,
                        "maxReplicas": options.most,
                        "rayStartParams": {},
                        "template": group("ray-worker", []),
                    }
                ],
            },
        },
    }
