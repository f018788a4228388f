"""Servers that the files of this folder share."""

from collections.abc import Iterator

import pytest

from tests.helpers.asgi_client import Served, served
from tests.helpers.attacked_server import KEY
from tests.helpers.browser import Browser


@pytest.fixture(scope="module")
def small_bodies(own_cache: None) -> Iterator[Served]:
    """A server that reads bodies up to 200 kB."""
    with served(limits={"body": 200_000}) as one:
        yield one


@pytest.fixture
def attacked(small_bodies: Served) -> Iterator[Served]:
    """That server; whatever came, the next request must be served."""
    yield small_bodies
    assert small_bodies.chat(max_tokens=1).status == 200
    assert small_bodies.api.dispatcher.busy == 0


@pytest.fixture(scope="module")
def locked(own_cache: None) -> Iterator[Served]:
    """A server that asks for one of two keys."""
    with served(keys=(KEY, "another-key-of-tests")) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The browser at a desk, with nothing kept; a page that complains fails its test."""
    browser.resize(1280, 860)
    browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    browser.problems.clear()
    browser.requests.clear()
    yield browser
    assert browser.problems == []
