"""API keys: every route needs them, comparison, hashes, memory of their own."""

from collections.abc import Sequence

import pytest

from sapwood import SapwoodError
from sapwood.engine.request import Request
from sapwood.server.http.middleware import ApiKeys
from sapwood.server.settings import ServerSettings
from tests.helpers.asgi_client import Served
from tests.helpers.attacked_server import AUTH, KEY, TEXT

pytestmark = pytest.mark.usefixtures("own_cache")


OTHER_ERRORS = ("/v1/messages", "/api/")  # routes of other APIs, with their form of errors


def test_every_route_but_health_and_the_page_needs_the_key(locked: Served) -> None:
    routes = [route for route in locked.app.app.routes if hasattr(route, "methods")]  # type: ignore[attr-defined]
    assert len(routes) >= 9
    open_ = [
        route.path
        for route in routes
        if not locked.app.needs_key(route.path.replace("{name}", "x"))
    ]
    assert [path for path in open_ if not path.startswith(("/health", "/playground/files/"))] in (
        [],
        ["/"],
    )
    for route in routes:
        for method in route.methods:
            answer = locked.run(locked.ask(method, route.path, b"{}"))
            assert (answer.status == 401) == (route.path not in open_), route.path
            if answer.status == 401 and method != "HEAD":
                if not route.path.startswith(OTHER_ERRORS):
                    assert answer.error["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY.upper()}",
        "Bearer \xff\xfe",
        f"Bearer {KEY},{KEY}",
    ],
)
def test_a_wrong_key(locked: Served, header: str) -> None:
    answer = locked.get("/v1/models", ("authorization", header))
    assert answer.status == 401
    assert KEY not in answer.body.decode()


def test_the_right_key_opens(locked: Served) -> None:
    assert locked.get("/v1/models", AUTH).status == 200
    assert locked.get("/v1/models", ("authorization", "bearer another-key-of-tests")).status == 200
    assert locked.get("/nothing", AUTH).status == 404
    assert locked.get("/nothing").status == 401  # who has no key does not learn what there is


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../metrics",
        "/v1/models/",
        "/V1/models",
        "/v1/models/../../metrics",
        "/health/../v1/models",
    ],
)
def test_other_spellings_of_a_path_need_the_key_too(locked: Served, path: str) -> None:
    assert locked.get(path).status == 401  # CVE-2026-48746: what is matched is the path itself
    assert (
        locked.get(path, ("x-original-url", "/health"), ("x-http-method-override", "GET")).status
        == 401
    )


def test_keys_are_compared_by_hashes_that_do_not_leave_the_process() -> None:
    one = ApiKeys((KEY, "second-key"))
    other = ApiKeys((KEY,))
    assert one.tenant(f"Bearer {KEY}") == one.tenant(f"bearer  {KEY}")
    assert one.tenant(f"Bearer {KEY}") != one.tenant("Bearer second-key")
    assert one.tenant(f"Bearer {KEY}") != other.tenant(f"Bearer {KEY}")
    assert one.tenant(None) is None
    assert ApiKeys(()).tenant(None) == ApiKeys(()).tenant("Bearer anything") == ""


def test_each_key_has_its_own_memory(locked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    submit = locked.api.engine_thread.submit

    def note(requests: Sequence[Request]) -> None:
        seen.extend(request.tenant for request in requests)
        submit(requests)

    monkeypatch.setattr(locked.api.engine_thread, "submit", note)
    body = {"model": "toy", "prompt": "Hi", "max_tokens": 1}
    for key in (KEY, "another-key-of-tests", KEY):
        assert locked.post(TEXT, body, ("authorization", f"Bearer {key}")).status == 200
    assert seen[0] == seen[2] != seen[1]
    assert "" not in seen


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_beyond_this_machine_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(SapwoodError, match="--insecure"):
        ServerSettings(host=host)
    ServerSettings(host=host, insecure=True)
    ServerSettings(host=host, keys=(KEY,))


@pytest.mark.parametrize("key", ["short", "with\nnewline", "ünicode-key"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    with pytest.raises(SapwoodError, match="printable"):
        ServerSettings(keys=(key,))
