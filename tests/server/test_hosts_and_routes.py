"""Host and Origin headers, pages from elsewhere, routes that are not there."""

import pytest

from tests.helpers.asgi_client import HOST, Served, served
from tests.helpers.attacked_server import AUTH, CHAT, KEY, TEXT

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    "host", ["evil.com", "127.0.0.1.evil.com:8000", "localhost.evil.com", "169.254.169.254"]
)
def test_a_foreign_host_is_a_rebound_name(attacked: Served, host: str) -> None:
    answer = attacked.run(
        attacked.ask("GET", "/v1/models", headers=(("host", host),))
    )  # CVE-2024-28224
    assert answer.status == 403


@pytest.mark.parametrize(
    "host", ["evil/?x=", "a b", "", "localhost:99999999", "local host", "[::1", "a@localhost"]
)
def test_a_host_that_is_none(locked: Served, host: str) -> None:
    answer = locked.run(
        locked.ask("GET", "/v1/models", headers=(("host", host),))
    )  # CVE-2026-48746
    assert answer.status == 400


def test_our_own_names(attacked: Served) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST:1"):
        assert attacked.run(attacked.ask("GET", "/health", headers=(("host", host),))).status == 200
    with served(host="0.0.0.0", insecure=True, hosts=("box.lan",)) as wide:
        codes = [
            wide.run(wide.ask("GET", "/health", headers=(("host", host),))).status
            for host in ("10.0.0.7:8000", "box.lan", "evil.com")
        ]
        assert codes == [200, 200, 403]


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost.evil.com",
        "null",
        "http://notlocalhost",
        "https://evil.com",
        "http://localhost:9",
        "x",
    ],
)
def test_pages_from_elsewhere_may_not_call(attacked: Served, origin: str) -> None:
    from_page = ("origin", origin)
    assert attacked.get("/v1/models", from_page).status == 403
    asked = attacked.run(
        attacked.ask(
            "OPTIONS", CHAT, headers=(HOST, from_page, ("access-control-request-method", "POST"))
        )
    )
    assert asked.status == 403
    assert not [name for name in asked.headers if name.startswith("access-control")]


def test_our_own_page_and_allowed_ones_may_call(attacked: Served) -> None:
    assert attacked.get("/v1/models", ("origin", f"http://{HOST[1]}")).status == 200
    page = ("origin", "https://app.example")
    with served(origins=("https://app.example",), keys=(KEY,)) as one:
        asked = one.run(
            one.ask(
                "OPTIONS", CHAT, headers=(HOST, page, ("access-control-request-method", "POST"))
            )
        )
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == page[1]
        assert one.get("/v1/models", page, AUTH).headers["access-control-allow-origin"] == page[1]
        assert one.get("/v1/models", page).status == 401
        assert one.get("/v1/models", ("origin", "https://other.example"), AUTH).status == 403


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/chat", "/v1/audio", "/v1/models/", "/../etc/passwd"]
)
def test_there_is_nothing_here(attacked: Served, path: str) -> None:
    answer = attacked.get(path)
    assert answer.status == 404
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),  # a base URL without /v1
        ("/v1/v1/messages", "/v1/messages"),  # and one with it where the client adds it
        ("/completion", "/v1/completions"),  # llama.cpp's own
        ("/api/embeddings", "/api/embed"),  # Ollama's older one
    ],
)
def test_the_path_that_was_meant_is_named(attacked: Served, path: str, meant: str) -> None:
    answer = attacked.get(path)
    assert answer.status == 404
    assert f"did you mean {meant}?" in str(answer.json["error"])


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("DELETE", "/v1/models"), ("PUT", TEXT), ("get", "/health")]
)
def test_not_in_this_way(attacked: Served, method: str, path: str) -> None:
    answer = attacked.run(attacked.ask(method, path, b"{}"))
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"]
