"""A server of the playground on a real port, and steps of a user at its page."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood import LLM
from sapwood.server.app import ApiRoutes
from sapwood.server.engine_thread import EngineThread
from sapwood.server.limits import Limits
from sapwood.server.server import http_server
from sapwood.server.settings import ServerSettings
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import NormalizedScript
from tests.helpers.browser import CHROMIUM, MISSING, Browser

RECIPE = "merge + best + match + fixed(nodes=16, depth=8, width=4)"  # trees that ask no clock
chromium = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
RUNNING = "!document.getElementById('stop').hidden"
ENDED = "document.getElementById('stop').hidden"
SAID = "[...document.querySelectorAll('.turn.assistant:last-child .text')].map(e => e.textContent).join('')"


@dataclass
class Slow(NormalizedScript):
    """Takes its time over each pass, so that a reader can be quicker."""

    wait: float = 0.0  # seconds

    def scores(self, contexts: Any) -> Any:
        """The same scores, later."""
        time.sleep(self.wait)
        return super().scores(contexts)


@contextmanager
def listening(
    script: str, wait: float = 0.0, recipe: str = RECIPE, **settings: Any
) -> Iterator[str]:
    """A server on a real port."""
    target = Slow(vocab=byte_tokenizer.SIZE, context=2048, script=script, wait=wait)
    llm = LLM(target, recipe, text=byte_tokenizer.text())
    llm.profile.measure(target, llm.progress, quick=True)  # the page shows the curve
    engine_thread = EngineThread(llm)
    api = ApiRoutes(
        engine_thread,
        ServerSettings(port=0, limits=Limits(), **{"recipes": ("plain",), **settings}),
        "toy",
        "ours",
    )
    server = http_server(api)
    engine_thread.start()
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(20)
        engine_thread.stop()
        api.parsers.shutdown()


def open_page(page: Browser, address: str) -> None:
    """Open the page and wait until it knows the server."""
    page.open(address)
    page.run("sessionStorage.clear(), localStorage.clear()")
    page.reload()
    page.wait("document.getElementById('facts').textContent.includes('toy')")


def ask(page: Browser, question: str) -> None:
    page.click("#question")
    page.type(question)
    page.press("Enter")
