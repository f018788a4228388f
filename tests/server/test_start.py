"""The start of the server: what a person reads and what the log has."""

import asyncio
import json
import logging
import socket
import urllib.request
from typing import Never

import pytest

from sapwood.cli.main import main
from sapwood.cli.options import ModelChoice
from sapwood.server.app import ApiRoutes
from sapwood.server.engine_thread import EngineThread
from sapwood.server.server import http_server, url_of
from sapwood.server.settings import ServerSettings
from tests.helpers.asgi_client import model

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_start_prints_a_url_that_opens(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    api = ApiRoutes(EngineThread(model()), ServerSettings(port=0), "toy", "suffix")
    server = http_server(api)

    async def start() -> tuple[str, int]:
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        printed = capsys.readouterr().out
        url = next(word for word in printed.split() if word.endswith("/v1,"))[:-1]
        opened = await asyncio.to_thread(urllib.request.urlopen, f"{url}/models")
        with opened:
            status = int(opened.status)
        await server.shutdown()
        return printed, status

    with caplog.at_level(logging.INFO, "sapwood.server"):
        printed, status = asyncio.run(start())
    [line] = [
        json.loads(record.getMessage())
        for record in caplog.records
        if "listening" in record.getMessage()
    ]
    assert status == 200
    assert printed == f"toy is served at {line['url']}/v1, with a playground at {line['url']}/\n"


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: ModelChoice, progress: object = None) -> Never:
        pytest.fail("the model was loaded")

    monkeypatch.setattr(ModelChoice, "open", never)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"sapwood: cannot listen on 127.0.0.1:{port}; is the port taken? "
        "choose another with --port\n"
    )


def test_urls_are_those_of_this_machine() -> None:
    assert url_of("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert url_of("0.0.0.0", 8000) == "http://127.0.0.1:8000"
    assert url_of("::", 80) == url_of("::1", 80) == "http://[::1]:80"
    assert url_of("box.local", 80) == "http://box.local:80"
