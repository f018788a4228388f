"""The document of the API: it is about the routes there are, and answers are as it says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.asgi_client import Served, served
from tests.server.clients.run import FUZZ, ready
from tests.server.clients.server import KEY, small

SOME = 60  # generated requests per run of the tests


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
        with served() as one:
            yield one


@pytest.fixture(scope="module")
def document(toy: Served) -> dict[str, Any]:
    found: dict[str, Any] = toy.get("/openapi.json").json
    return found


def references(value: Any) -> Iterator[str]:
    """Every reference inside a value."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = set(references(document))
    assert len(found) > 10
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= set(schemas)


def test_every_route_of_the_api_is_described(toy: Served, document: dict[str, Any]) -> None:
    for route in toy.api.routes():
        path = route.path.replace(":path", "")  # type: ignore[attr-defined]
        if path == "/openapi.json":
            continue
        methods = {method.lower() for method in route.methods if method != "HEAD"}  # type: ignore[attr-defined]
        assert set(document["paths"][path]) == methods


def test_limits_stand_in_the_document(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["model"] == {"anyOf": [{"const": "toy"}, {"type": "null"}]}
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 16}
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == 512
    assert fields["temperature"]["anyOf"][0]["maximum"] == 2
    assert document["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False


def test_a_server_with_keys_says_so(document: dict[str, Any]) -> None:
    assert "security" not in document
    with served(keys=("a-key-of-tests",)) as one:
        locked = one.get("/openapi.json", ("authorization", "Bearer a-key-of-tests")).json
        assert locked["security"] == [{"key": []}]


@pytest.mark.slow
def test_generated_requests(tmp_path: Path) -> None:
    if reason := ready(FUZZ):
        pytest.skip(reason)
    with small(tmp_path) as server:
        done = FUZZ.run(server.url, KEY, str(SOME))
        assert done.returncode == 0, done.stdout[-4000:]
        asked = [line for line in server.lines if line["event"] == "request"]
        assert len(asked) >= SOME
        assert not [line for line in asked if line["status"] >= 500]
