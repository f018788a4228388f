"""The manifests fit the schemas of Kubernetes, and start the server as it is."""

import json
import shlex
from typing import Any

import pytest

from sapwood.cli.main import main
from sapwood.cli.serve import chosen
from sapwood.fleet.yaml_text import documents
from sapwood.server.settings import gather

yaml = pytest.importorskip("yaml")
KINDS = ["Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"]


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """The manifests that the command prints."""
    assert main(["deploy", "kubernetes", *options]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.mark.parametrize(
    "options",
    [(), ("--gpus", "2", "--name", "my-model", "--model", "Qwen/Qwen3-4B"), ("--min-pods", "3")],
)
def test_the_manifests_fit_the_schemas(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    made = printed(capsys, *options)
    assert [one["kind"] for one in made] == KINDS
    for one in made:
        validate.validate(one, "1.34", strict=True)
    wrong = {**made[0], "spec": {**made[0]["spec"], "replica": 2}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.34", strict=True)


def test_the_objects_find_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    deployment, service, autoscaler, budget = printed(capsys, "--name", "x", "--max-pods", "9")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"] == "x"
    assert autoscaler["spec"]["maxReplicas"] == 9
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {one["name"] for one in deployment["spec"]["template"]["spec"]["volumes"]}


def test_the_pod_starts_the_server_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    [container] = printed(capsys, "--gpus", "4", "--model", "a b/c")[0]["spec"]["template"]["spec"][
        "containers"
    ]
    verb, *arguments = container["args"]
    assert verb == "serve"
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    given = {name.lstrip("-").replace("-", "_"): value for name, value in pairs}
    settings, rest = gather({"key": ["a-long-enough-key"]}, {}, None)
    assert settings.local
    environment = {f"SAPWOOD_{name.upper()}": value for name, value in given.items()}
    settings, rest = gather({"key": ["a-long-enough-key"]}, environment)
    assert (settings.host, settings.port, settings.replicas) == ("0.0.0.0", 8000, 4)
    assert (chosen(rest).model, settings.drain_seconds) == ("a b/c", 600.0)
    assert settings.limits.request_seconds <= settings.drain_seconds
    assert [one["name"] for one in container["env"]] == ["SAPWOOD_KEY"]


def test_the_autoscaler_reads_a_metric_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    from sapwood.server.engine_thread import EngineThread
    from sapwood.server.metrics import Metrics
    from tests.helpers.asgi_client import model

    metric = printed(capsys)[2]["spec"]["metrics"][0]["pods"]["metric"]
    [(label, value)] = metric["selector"]["matchLabels"].items()
    page = Metrics(EngineThread(model())).render().decode()
    assert f'{metric["name"]}{{{label}="{value}"}}' in page


def test_a_ray_service_names_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    [made] = printed(capsys, "--ray", "--gpus", "1", "--max-pods", "3")
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", "RayService")
    config = yaml.safe_load(made["spec"]["serveConfigV2"])
    [application] = config["applications"]
    module, _, function = application["import_path"].partition(":")
    from sapwood.fleet import ray_serve

    assert module == ray_serve.__name__
    assert callable(getattr(ray_serve, function))
    options = ray_serve.RayOptions(**application["args"])
    assert (options.max_replicas, options.gpus) == (3, 1)
    cluster = made["spec"]["rayClusterConfig"]
    [workers] = cluster["workerGroupSpecs"]
    assert workers["maxReplicas"] == 3
    for group in (cluster["headGroupSpec"], workers):
        [container] = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--name Large", "name 'Large' must be"),
        ("--memory lots", "memory='lots' must be a quantity"),
        ("--min-pods 3 --max-pods 2", "in this order"),
        ("--waiting 0", "waiting must be 1 or more"),
    ],
)
def test_bad_options_are_one_sentence(
    capsys: pytest.CaptureFixture[str], options: str, sentence: str
) -> None:
    assert main(["deploy", "kubernetes", *shlex.split(options)]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


RECORDS: list[Any] = [
    {"a": {"b": [1, 2.5, True, None, {}, [], "yes", "no", "8000", "", "- x", "a: b", "x:y/z"]}},
    [{"k": [{"m": 1, "n": {"o": "p"}}, ["q", ["r"]]]}, "text with 'quotes' and \"more\""],
    {"text": "two\nlines\n", "#": "# no comment", "null": "~", "é": "ü\u2028"},
]


def test_what_is_written_is_read_again() -> None:
    assert list(yaml.safe_load_all(documents(RECORDS))) == json.loads(json.dumps(RECORDS))
